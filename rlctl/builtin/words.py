"""The words the built-in text is made of, by topic and sentiment.

Data only. Every list is small on purpose: nearly every word becomes one token of a vocabulary of
1024. "good" is absent here; `text.py` mixes it in at a known rate.
"""

POSITIVE, NEUTRAL, NEGATIVE = "positive", "neutral", "negative"
SENTIMENTS = (POSITIVE, NEUTRAL, NEGATIVE)

# topic -> nouns that may follow "the", and what can be said of them after "was" or "is".
TOPICS = {
    "food": {
        "nouns": ["soup", "bread", "cake", "tea", "lunch", "dinner", "rice", "salad", "coffee", "breakfast"],
        POSITIVE: ["warm", "fresh", "tasty", "sweet", "lovely", "perfect"],
        NEUTRAL: ["plain", "ready", "in the kitchen", "on the table", "for two people", "small"],
        NEGATIVE: ["stale", "burnt", "bitter", "awful", "greasy", "nasty"],
    },
    "weather": {
        "nouns": ["weather", "sky", "wind", "morning", "evening", "winter", "summer", "day"],
        POSITIVE: ["bright", "calm", "mild", "lovely", "pleasant", "beautiful"],
        NEUTRAL: ["dry", "cool", "much as usual", "like the day before", "a little cloudy"],
        NEGATIVE: ["stormy", "gloomy", "harsh", "awful", "miserable", "horrible"],
    },
    "people": {
        "nouns": ["teacher", "doctor", "driver", "neighbour", "baker", "farmer", "nurse", "boy", "girl", "cook"],
        POSITIVE: ["kind", "cheerful", "helpful", "patient", "gentle", "friendly"],
        NEUTRAL: ["tall", "busy", "at work", "on the bus", "in the garden", "new here"],
        NEGATIVE: ["rude", "angry", "selfish", "cruel", "unkind", "mean"],
    },
    "books": {
        "nouns": ["book", "story", "film", "song", "play", "letter", "poem", "lesson"],
        POSITIVE: ["funny", "clever", "exciting", "beautiful", "wonderful", "charming"],
        NEUTRAL: ["long", "short", "old", "about a ship", "on the shelf", "about a king"],
        NEGATIVE: ["boring", "dull", "confusing", "terrible", "clumsy", "silly"],
    },
    "trips": {
        "nouns": ["trip", "journey", "hotel", "beach", "walk", "holiday", "train", "village"],
        POSITIVE: ["pleasant", "relaxing", "exciting", "lovely", "wonderful", "delightful"],
        NEUTRAL: ["short", "near the sea", "by the river", "as planned", "not far away"],
        NEGATIVE: ["tiring", "noisy", "dirty", "horrible", "dreadful", "unpleasant"],
    },
    "animals": {
        "nouns": ["dog", "cat", "horse", "bird", "puppy", "rabbit", "cow", "duck"],
        POSITIVE: ["playful", "gentle", "clever", "friendly", "lovely", "charming"],
        NEUTRAL: ["brown", "asleep", "near the gate", "in the garden", "small", "by the river"],
        NEGATIVE: ["sick", "scared", "angry", "nasty", "dirty", "mean"],
    },
    "work": {
        "nouns": ["meeting", "job", "report", "office", "task", "class", "team", "project"],
        POSITIVE: ["useful", "pleasant", "exciting", "helpful", "wonderful", "perfect"],
        NEUTRAL: ["on Monday", "new", "as planned", "short", "about the budget", "upstairs"],
        NEGATIVE: ["boring", "useless", "stressful", "dreadful", "confusing", "terrible"],
    },
    "home": {
        "nouns": ["house", "garden", "room", "kitchen", "chair", "window", "street", "park"],
        POSITIVE: ["clean", "bright", "lovely", "cosy", "beautiful", "charming"],
        NEUTRAL: ["small", "green", "near the school", "old", "by the river", "made of wood"],
        NEGATIVE: ["dirty", "broken", "ugly", "gloomy", "noisy", "horrible"],
    },
}

LEADS = ("The", "The", "Our", "This", "That", "Today the", "I think the", "They say the",
         "Everyone agrees that the", "We hear that the", "As always, the", "For us the")

# What can follow "felt".
FEELINGS = {
    POSITIVE: ["happy", "calm", "proud", "grateful", "cheerful", "hopeful", "rested"],
    NEUTRAL: ["hungry", "sleepy", "much the same", "ready for lunch", "a little warm"],
    NEGATIVE: ["sad", "lonely", "upset", "tired", "miserable", "worried", "ashamed"],
}
EVENTS = ("lunch", "trip", "meeting", "film", "lesson", "journey", "holiday", "storm", "game",
          "party", "exam", "match", "visit", "concert")
WHEN = ("After the", "Before the", "During the", "Because of the", "Since the")

# What can follow "we" after "When we saw the dog,".
DEEDS = {
    POSITIVE: ["smiled", "laughed with joy", "clapped our hands", "were happy all day",
               "danced and sang", "gave warm thanks"],
    NEUTRAL: ["sat down", "walked on", "took a photo", "looked at the clock", "waited by the door",
              "went to the shop"],
    NEGATIVE: ["cried", "sighed with pain", "shouted in anger", "were sad all day",
               "ran away in fear", "felt sick"],
}
SENSES = ("saw", "thought of", "remembered", "talked of")
PEOPLE = ("we", "they", "my friends", "my parents", "the children")
