"""From the command line to a typed config: what composes, what it becomes, and the exact words for what does not."""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.config import compose, describe, schema
from rlctl.config import help as help_text
from rlctl.config.checks import divisors, problems
from rlctl.config.compose import Job
from rlctl.config.paths import conf_dir
from rlctl.config.schema import OPTIONS, Config, FunctionRewardConfig, ModelRewardConfig, Overlong, PPOConfig, ValueInit
from rlctl.errors import ConfigError

Compose = Callable[..., list[Job]]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compose]:
    """Composes a command line in an empty folder; the jobs it stands for."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    compose._fresh_dir.cache_clear()  # a process composes one command; this one composes many
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*argv: str, recipe: Path | None = None, check: bool = True) -> list[Job]:
        seen: list[Job] = []

        def record(job: Job) -> None:
            if check:
                compose.check(job.config)
            seen.append(job)

        compose.run(list(argv), recipe, record)
        return seen

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def config(jobs: Compose) -> Callable[..., Config]:
    """Composes one run; its config."""

    def one(*argv: str, recipe: Path | None = None) -> Config:
        (job,) = jobs(*argv, recipe=recipe)
        return job.config

    return one


@pytest.fixture
def refused(jobs: Compose) -> Callable[..., list[str]]:
    """Composes a command line that must be refused before any run; the lines of its error."""

    def lines(*argv: str, recipe: Path | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            jobs(*argv, recipe=recipe)
        assert caught.value.exit_status == 2
        return caught.value.lines()

    return lines


def _with(key: str, value: Any, start: Config | None = None) -> Config:
    """A config with one key changed."""
    start = start or Config()
    group, dot, name = key.partition(".")
    if not dot:
        return dataclasses.replace(start, **{group: value})
    return dataclasses.replace(start, **{group: dataclasses.replace(getattr(start, group), **{name: value})})


def _sized(**keys: Any) -> Config:
    """A config with some keys changed: group__name=value."""
    got = Config()
    for key, value in keys.items():
        got = _with(key.replace("__", "."), value, got)
    return got


# the shorthand


@pytest.mark.parametrize("path", ["mypkg.count_good", "a.b.c._d1"])
def test_function_and_data_file_shorthand(config, path):
    got = config(f"reward=fn:{path}", "data=file:/a-b/c.d.csv")
    assert got.reward == FunctionRewardConfig(path=path)
    assert got.data.path == "/a-b/c.d.csv"


@pytest.mark.parametrize("path", ["/x/y-z.1/w_v", "org/name-7b.v2", "a"])
def test_model_and_hub_shorthands_keep_every_character_of_a_path(config, path):
    got = config(f"reward=model:{path}", f"model=hf:{path}", f"data=hf:{path}")
    assert got.reward == ModelRewardConfig(path=path)
    assert got.model.path == got.data.path == path


def test_a_data_file_that_is_not_there_is_still_a_file_and_never_a_name_on_the_hub(config):
    assert config("data=file:prompts").data.path == str(Path.cwd() / "prompts")


def test_shorthand_leaves_the_other_keys_of_its_group_to_be_overridden(config):
    both = config("reward=model:/m", "reward.batch_size=7", "data=file:/d.jsonl", "data.prompt_column=q")
    assert (both.reward.path, both.reward.batch_size) == ("/m", 7)
    assert (both.data.path, both.data.prompt_column) == ("/d.jsonl", "q")


def test_shorthand_in_a_sweep(jobs):
    members = jobs("-m", "reward=fn:a.b,model:/x/y-z.1", "model=hf:org/m-1.5,hf:/p/q", "data=file:/a.jsonl")
    found = [(type(m.config.reward), m.config.reward.path, m.config.model.path, m.config.data.path) for m in members]
    assert found == [
        (FunctionRewardConfig, "a.b", "org/m-1.5", "/a.jsonl"),
        (FunctionRewardConfig, "a.b", "/p/q", "/a.jsonl"),
        (ModelRewardConfig, "/x/y-z.1", "org/m-1.5", "/a.jsonl"),
        (ModelRewardConfig, "/x/y-z.1", "/p/q", "/a.jsonl"),
    ]
    assert [m.number for m in members] == [0, 1, 2, 3]


def test_a_sweep_has_a_folder_for_each_member(jobs):
    members = jobs("-m", "seed=3,4")
    assert [m.run_dir.name for m in members] == ["0", "1"]
    assert members[0].run_dir.parent == members[1].run_dir.parent
    assert members[0].run_dir.parent.parent.parent == Path.cwd() / "multirun"


def test_a_single_run_has_a_folder_of_its_own_and_no_number(jobs):
    (single,) = jobs()
    assert problems(single.config) == []
    assert single.number is None
    assert single.config.run.dir == str(single.run_dir)
    assert single.run_dir.parent.parent == Path.cwd() / "outputs"


# values


def test_typed_values_from_the_command_line(config):
    expected = {
        "optim.lr=2e-5": (lambda c: c.optim.lr, 2e-5),
        "optim.eps=1E-9": (lambda c: c.optim.eps, 1e-9),
        "algo.kl_coef=1": (lambda c: c.algo.kl_coef, 1.0),
        "algo.clip_range_value=null": (lambda c: c.algo.clip_range_value, None),
        "data.overlong=cut": (lambda c: c.data.overlong, Overlong.cut),
        "launch.mixed_precision=no": (lambda c: c.launch.mixed_precision, schema.MixedPrecision.no),
        "run.save_value=true": (lambda c: c.run.save_value, True),
        "rollout.stop=[a,b]": (lambda c: c.rollout.stop, ["a", "b"]),
        "reward.path=a.b": (lambda c: c.reward.path, "a.b"),
        "seed=17": (lambda c: c.seed, 17),
    }
    got = config(*expected)
    for override, (get, value) in expected.items():
        assert get(got) == value, override
        assert type(get(got)) is type(value), override


def test_typed_values_from_a_file(config, tmp_path):
    recipe = _recipe(tmp_path, "optim:\n  lr: 2e-5\nlaunch:\n  mixed_precision: 'no'\nrun:\n  save_value: yes\n")
    got = config(recipe=recipe)
    assert (got.optim.lr, type(got.optim.lr)) == (2e-5, float)
    assert got.launch.mixed_precision is schema.MixedPrecision.no
    assert got.run.save_value is True


def test_a_value_of_the_wrong_type_names_its_key(refused):
    assert refused("optim.lr=fast") == [
        "error: the config cannot be composed",
        "  why:  optim.lr: Value 'fast' of type 'str' could not be converted to Float",
        "  try:  rlctl train --help lists every option and key",
    ]


def test_a_value_of_the_wrong_type_in_a_file_names_its_key(refused, tmp_path):
    recipe = _recipe(tmp_path, "optim:\n  lr: fast\n")
    assert "optim.lr: Value 'fast' of type 'str' could not be converted to Float" in "\n".join(refused(recipe=recipe))


def test_all_values_of_the_wrong_type_are_one_error(refused):
    wrong = {
        "optim.lr=2e-5x": "optim.lr: Value '2e-5x' of type 'str' could not be converted to Float",
        "run.steps=1.5": "run.steps: Value '1.5' of type 'float' could not be converted to Integer",
        "seed=yes": "seed: Value 'yes' of type 'str' could not be converted to Integer",
        "run.save_every=none": "run.save_every: Value 'none' of type 'str' could not be converted to Integer",
        "data.overlong=foo": "data.overlong: Invalid value 'foo', expected one of [error, drop, cut]",
    }
    first, *rest = wrong.values()
    assert refused("algo.kl_coef=1", *wrong) == [
        "error: the config cannot be composed",
        f"  why:  {first}",
        *(f"        {line}" for line in rest),
        "  try:  rlctl train --help lists every option and key",
    ]


# unknown keys, options and flags


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("optim.learning_rate", "optim.lr"),
        ("learning_rate", "optim.lr"),
        ("lr", "optim.lr"),
        ("algo.lerning_rate", "optim.lr"),
        ("ppo_epochs", "algo.epochs"),
        ("num_mini_batches", "algo.minibatches"),
        ("per_device_train_batch_size", "optim.microbatch_size"),
        ("gamma", "algo.discount"),
        ("response_length", "rollout.max_new_tokens"),
        ("max_completion_length", "rollout.max_new_tokens"),
        ("num_generations", "algo.samples_per_prompt"),
        ("total_steps", "run.steps"),
        ("algo.kl_coeff", "algo.kl_coef"),
        ("kl_coef", "algo.kl_coef"),
        ("algo.temperature", "rollout.temperature"),
        ("data.promptcolumn", "data.prompt_column"),
        ("sed", "seed"),
        ("rewrd", "reward"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(refused, typed, meant):
    got = refused(f"{typed}=1")
    assert got[0] == "error: unknown key"
    assert got[1] == f"  why:  {typed}=1: there is no key '{typed}'; did you mean {meant}?"
    assert got[2:] == ["  try:  rlctl train --help lists every key"]


@pytest.mark.parametrize("typed", ["zzz", "algo.zzzzz", "algo.nosuch", "nothing.at_all"])
def test_a_key_like_no_other_gets_no_suggestion(refused, typed):
    assert refused(f"{typed}=1") == [
        "error: unknown key",
        f"  why:  {typed}=1: there is no key '{typed}'",
        "  try:  rlctl train --help lists every key",
    ]


@pytest.mark.parametrize("alias", sorted(compose.explain._ALIASES))
def test_every_name_from_elsewhere_leads_to_a_key_that_exists(alias):
    assert compose.explain._ALIASES[alias] in describe.known_keys()
    assert alias not in describe.known_keys()


def test_several_unknown_keys_are_one_error(refused):
    assert refused("learning_rate=1", "run.steps=2", "ppo_epochs=2", "algo.kl_coeff=1") == [
        "error: unknown keys",
        "  why:  learning_rate=1: there is no key 'learning_rate'; did you mean optim.lr?",
        "        ppo_epochs=2: there is no key 'ppo_epochs'; did you mean algo.epochs?",
        "        algo.kl_coeff=1: there is no key 'algo.kl_coeff'; did you mean algo.kl_coef?",
        "  try:  rlctl train --help lists every key",
    ]


def test_unknown_keys_in_a_sweep(refused):
    assert refused("-m", "optim.learning_rate=1,2")[1] == (
        "  why:  optim.learning_rate=1,2: there is no key 'optim.learning_rate'; did you mean optim.lr?"
    )


def test_an_unknown_key_in_a_recipe_file_is_refused_by_name(refused, tmp_path):
    recipe = _recipe(tmp_path, "algo:\n  lerning_rate: 1\n")
    text = "\n".join(refused(recipe=recipe))
    assert "lerning_rate" in text
    assert "optim.lr" in text


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("+optim.lr=1", "+optim.lr=1: optim.lr exists already; write it without +"),
        ("++optim.lr=1", "++optim.lr=1: optim.lr exists already; write it without +"),
        ("+algo.lerning_rate=1", "+algo.lerning_rate=1: there is no key 'algo.lerning_rate'; did you mean optim.lr?"),
        ("+zzz.yyy=1", "+zzz.yyy=1: there is no key 'zzz.yyy'"),
        ("~optim.lr", "~optim.lr: optim.lr cannot be removed; write optim.lr=null for no value"),
    ],
)
def test_keys_are_neither_added_nor_removed(refused, override, why):
    assert refused(override) == ["error: unknown key", f"  why:  {why}", "  try:  rlctl train --help lists every key"]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("algo=pp0", "algo=pp0: no such option; did you mean algo=ppo? "),
        ("value=polici", "value=polici: no such option; did you mean value=policy? "),
        ("reward=modle:/x", "reward=modle:/x: no such option; did you mean reward=model? "),
        ("data=hff:x", "data=hff:x: no such option; did you mean data=hf? "),
        ("console=zzz", "console=zzz: no such option "),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_and_all_there_are(refused, override, why):
    group = override.partition("=")[0]
    options = sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))
    kinds = [f"{kind}:..." for g, kind in compose.shorthand.KINDS if g == group]
    assert refused(override) == [
        "error: the config cannot be composed",
        f"  why:  {why}(there are: {', '.join([*options, *kinds])})",
        "  try:  rlctl train --help lists every option and key",
    ]


def test_a_key_that_the_chosen_option_lacks_says_which_option_has_it(refused):
    assert refused("reward=fn:a.b", "reward.batch_size=4") == [
        "error: the config cannot be composed",
        "  why:  reward.batch_size: the chosen options have no such key; reward=model has it",
        "  try:  rlctl train --help lists every option and key",
    ]


@pytest.mark.parametrize(("flag", "near"), [("--cgf", "--cfg"), ("--multi-run", "--multirun"), ("--hlep", "--help")])
def test_an_unknown_flag_is_refused_with_the_nearest(refused, flag, near):
    assert refused(flag) == [f"error: unknown option {flag}", f"  try:  did you mean {near}?"]


# values that need quotes


@pytest.mark.parametrize(
    ("override", "pasted", "get", "value"),
    [
        ("model.path=ckpt/epoch=3", """'model.path="ckpt/epoch=3"'""", lambda c: c.model.path, "ckpt/epoch=3"),
        ("data.path=a#b", """'data.path="a#b"'""", lambda c: c.data.path, "a#b"),
        ("data.path=a<b", """'data.path="a<b"'""", lambda c: c.data.path, "a<b"),
        ("data.path=a&b", """'data.path="a&b"'""", lambda c: c.data.path, "a&b"),
        ("data.path=it's", """'data.path="it'\\''s"'""", lambda c: c.data.path, "it's"),
        ("rollout.stop=<|im_end|>", """'rollout.stop=["<|im_end|>"]'""", lambda c: c.rollout.stop, ["<|im_end|>"]),
        ("rollout.stop=[<|im_end|>]", """'rollout.stop=["<|im_end|>"]'""", lambda c: c.rollout.stop, ["<|im_end|>"]),
        ("rollout.stop=[a=b]", """'rollout.stop=["a=b"]'""", lambda c: c.rollout.stop, ["a=b"]),
        ("rollout.stop=[<a>,<b>]", """'rollout.stop=["<a>","<b>"]'""", lambda c: c.rollout.stop, ["<a>", "<b>"]),
    ],
)
def test_a_value_that_needs_quotes_is_shown_as_it_can_be_pasted(refused, config, override, pasted, get, value):
    assert refused(override) == [
        "error: the command line cannot be read",
        f"  why:  {override}: a value with = # < > & {{ }} [ ] , ' or blanks needs quotes inside the shell's own",
        f"  try:  {pasted}",
    ]
    (argument,) = shlex.split(pasted)
    assert get(config(argument)) == value


@pytest.mark.parametrize("override", ["model=hf:ckpt/epoch=3", "reward=model:/m/a&b", "data=file:/d/x=1/p.jsonl"])
def test_a_shorthand_that_needs_quotes_is_shown_as_it_can_be_pasted(refused, config, override):
    hint = refused(override)[-1].removeprefix("  try:  ")
    (argument,) = shlex.split(hint)
    group, _, value = override.partition("=")
    assert getattr(config(argument), group).path == value.partition(":")[2]


def test_every_override_that_does_not_parse_is_named(refused):
    got = refused("model.path=a=b", "seed=1", "data.path=c=d")
    assert got[1].startswith("  why:  model.path=a=b: ")
    assert got[2].startswith("        data.path=c=d: ")
    assert got[3:] == ["""  try:  'model.path="a=b"'""", """        'data.path="c=d"'"""]


def test_a_word_that_is_no_override(refused):
    assert refused("seed=1", "steps") == [
        "error: the command line cannot be read",
        "  why:  steps: an override has the form key=value",
        "  try:  rlctl train algo.kl_coef=0.1",
    ]


# what the config alone shows to be wrong


_TEXT_KEYS = ["model.path", "data.path", "data.chat_template", "reward.path", "model.revision"]


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
@pytest.mark.parametrize("key", _TEXT_KEYS)
def test_the_word_none_is_a_problem_where_a_text_is_expected(key, word):
    (problem, *_) = problems(_with(key, word))
    assert problem.startswith(f"{key}={word}: this is the word '{word}'; write ")


def test_the_word_none_is_refused_from_the_command_line(refused):
    got = refused(*(f"{key}=none" for key in _TEXT_KEYS))
    for key in _TEXT_KEYS:
        assert any(f"{key}=none: this is the word 'none'" in line for line in got)


@pytest.mark.parametrize("key", ["model.path", "data.path", "data.chat_template"])
def test_what_is_advised_in_place_of_none_composes(config, key):
    """A key that may be empty is told to be null; one that may not is not."""
    (problem, *_) = problems(_with(key, "none"))
    group, _, name = key.partition(".")
    if f"{key}=null" in problem:
        assert getattr(getattr(config(f"{key}=null"), group), name) is None
    else:
        assert f"write {key}=builtin for the default" in problem


@pytest.mark.parametrize("key", ["model.path", "data.prompt_column", "reward.path"])
def test_an_empty_text_is_refused(refused, key):
    assert any(f"{key} is empty" in line for line in refused(f"{key}="))


def test_no_tracker_is_the_word_none():
    assert problems(_sized(run__tracker="none")) == []


def _bounded_keys() -> list[tuple[str, type, dataclasses.Field[Any]]]:
    base = {f.name: f.default_factory for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)}
    classes = [(name, cls) for name, default in base.items() for cls in OPTIONS.get(name, {"": default}).values()]
    found = [("", Config, f) for f in dataclasses.fields(Config)] + [(n, c, f) for n, c in classes for f in dataclasses.fields(c)]
    return [(group, cls, f) for group, cls, f in found if f.metadata]


_LINES = {
    "ge": ("at least", lambda b: b - 1, lambda b: b),
    "gt": ("greater than", lambda b: b, lambda b: b + 1e-3),
    "le": ("at most", lambda b: b + 1e-3, lambda b: b),
    "lt": ("less than", lambda b: b, lambda b: b - 1e-3),
}


@pytest.mark.parametrize(
    ("group", "cls", "field", "bound"),
    [(g, c, f, b) for g, c, f in _bounded_keys() for b in f.metadata],
    ids=[f"{c.__name__}.{f.name}-{b}" for _, c, f in _bounded_keys() for b in f.metadata],
)
def test_every_bound_refuses_what_is_outside_and_takes_its_edge(group, cls, field, bound):
    words, outside, inside = _LINES[bound]
    limit = field.metadata[bound]
    key = f"{group}.{field.name}" if group else field.name
    start = dataclasses.replace(Config(), **{group: cls()}) if group else Config()
    for value in (outside(limit), math.nan):
        assert f"{key}={value}: must be {words} {limit}" in problems(_with(key, value, start))
    assert not [p for p in problems(_with(key, inside(limit), start)) if p.startswith(f"{key}=")]


def test_the_keys_that_must_be_bounded_are():
    bounded = {f"{g}.{f.name}": dict(f.metadata) for g, _, f in _bounded_keys()}
    assert bounded["rollout.temperature"] == {"gt": 0}
    assert bounded["algo.missing_eos_penalty"] == {"ge": 0}
    assert bounded["algo.gae_lambda"] == {"ge": 0, "le": 1}
    assert bounded["rollout.top_p"] == {"gt": 0, "le": 1}


_ANY_NUMBER = {"violation_score", "timeout_score"}
"""Keys that hold a score: any number is one."""


def test_every_number_is_bounded():
    bounded = {(cls, f.name) for _, cls, f in _bounded_keys()}
    base = [f.default_factory for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)]
    numbers = [
        (cls, f.name)
        for cls in {*base, *(c for o in OPTIONS.values() for c in o.values())}
        for f in dataclasses.fields(cls)
        if any(word in str(f.type) for word in ("int", "float"))
    ]
    assert [(c.__name__, name) for c, name in numbers if (c, name) not in bounded and name not in _ANY_NUMBER] == []


def test_every_problem_of_a_config_is_in_one_error(refused):
    got = refused("run.keep=0", "algo.kl_coef=-1", "rollout.temperature=0", "data.path=none")
    assert got[0] == "error: the config has 4 problems"
    assert len(got) == 5


def test_one_cause_is_told_once():
    assert problems(_sized(run__steps=0)) == ["run.steps=0: must be at least 1"]


@pytest.mark.parametrize(
    ("asked", "total", "nearest"), [(3, 8, "2 or 4"), (5, 12, "4 or 6"), (9, 8, "8"), (7, 30, "6 or 10"), (2, 5, "1 or 5")]
)
def test_minibatches_that_do_not_divide_name_the_nearest_that_do(asked, total, nearest):
    assert problems(_sized(algo__minibatches=asked, rollout__prompts_per_step=total)) == [
        f"algo.minibatches={asked} does not divide the {total} samples of a step (rollout.prompts_per_step={total} x "
        f"algo.samples_per_prompt=1); nearest: algo.minibatches={nearest}",
    ]
    for number in nearest.split(" or "):
        assert problems(_sized(algo__minibatches=int(number), rollout__prompts_per_step=total)) == []


def test_samples_per_prompt_count_as_samples():
    got = _sized(algo__minibatches=3, rollout__prompts_per_step=4, algo__samples_per_prompt=3)
    assert problems(got) == []
    assert (got.samples_per_step, got.minibatch_size) == (12, 4)


@pytest.mark.parametrize("n", [1, 12, 13, 64])
def test_divisors(n):
    assert all(n % d == 0 for d in divisors(n))
    assert [d for d in range(1, n + 1) if n % d == 0] == divisors(n)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"value__init": ValueInit.reward, "reward__path": "mypkg.count_good"},
            "value=reward needs a reward model to start from, and the reward is the function mypkg.count_good; "
            "write value=policy, or reward=model:PATH",
        ),
        ({"reward__path": "nodots"}, "reward=fn:nodots: expected the dotted path of a function, such as fn:mypkg.count_good"),
        (
            {"algo__kl_target": 3.0, "algo__kl_coef": 0.0},
            "algo.kl_target needs algo.kl_coef > 0 to start from: the controller multiplies it",
        ),
        (
            {"algo__max_kl": 3.0, "run__save_every": 1, "run__keep": 1},
            "algo.max_kl needs run.keep of at least 2: the newest checkpoint may be the one past the limit",
        ),
        (
            {"algo__value_warmup_steps": 5, "run__steps": 5},
            "algo.value_warmup_steps=5 leaves none of the 5 steps for the policy",
        ),
        (
            {"optim__warmup_updates": 9, "run__steps": 2, "algo__epochs": 4},
            "optim.warmup_updates=9 is more than the 8 updates of the run",
        ),
    ],
)
def test_keys_that_do_not_go_together(changes, why):
    assert problems(_sized(**changes)) == [why]


def test_a_problem_of_the_config_is_an_error_with_it_as_the_reason(refused):
    assert refused("value=reward", "reward=fn:mypkg.count_good") == [
        "error: the config has a problem",
        "  why:  value=reward needs a reward model to start from, and the reward is the function mypkg.count_good; "
        "write value=policy, or reward=model:PATH",
    ]


# the saved config


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward=fn:a.b", "optim.lr=2e-5", "seed=0"],
        ["reward=model:/m/x-1", "reward.max_length=64", "value=reward", "launch=cpu"],
        ["rollout.stop=['a b','=']", "run.save_every=3", "algo.clip_range_value=null", "data.overlong=drop", "optim.eps=1e-9"],
    ],
)
def test_a_saved_config_reads_back_equal(config, tmp_path, overrides):
    before = config(*overrides)
    compose.save(before, tmp_path / "config.yaml")
    after = compose.load(tmp_path / "config.yaml")
    assert after == before
    assert (type(after.algo), type(after.reward)) == (PPOConfig, type(before.reward))


def test_a_saved_config_that_is_missing(tmp_path):
    with pytest.raises(ConfigError) as caught:
        compose.load(tmp_path / "config.yaml")
    assert caught.value.lines() == [
        f"error: no resolved config at {tmp_path / 'config.yaml'}",
        "  try:  a run folder made by `rlctl train` holds config.yaml",
    ]


@pytest.mark.parametrize(("line", "named"), [("nosuch: 1", "nosuch"), ("seed: many", "seed")])
def test_a_saved_config_of_another_version_is_refused(tmp_path, line, named):
    path = tmp_path / "config.yaml"
    compose.save(Config(), path)
    path.write_text(path.read_text().replace("seed: 0", line))
    with pytest.raises(ConfigError) as caught:
        compose.load(path)
    assert caught.value.what == f"{path} cannot be read"
    assert caught.value.why is not None and named in caught.value.why


@pytest.mark.parametrize("line", ["name: ppo", "kind: fn"])
def test_a_saved_config_with_an_unknown_algorithm_or_reward_is_refused(tmp_path, line):
    path = tmp_path / "config.yaml"
    compose.save(Config(), path)
    raw = path.read_text()
    path.write_text(raw.replace(line, f"{line.partition(':')[0]}: nosuch", 1))
    assert path.read_text() != raw
    with pytest.raises(ConfigError, match=r"cannot be read"):
        compose.load(path)


# recipes and paths


def _recipe(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"defaults:\n  - base\n  - _self_\n{text}")
    return folder


def test_a_recipe_sets_keys_and_the_command_line_wins_over_it(config, tmp_path):
    recipe = _recipe(tmp_path, "seed: 7\nalgo:\n  kl_coef: 0.3\n")
    got = config("algo.kl_coef=0.4", recipe=recipe)
    assert (got.seed, got.algo.kl_coef) == (7, 0.4)


def test_a_recipe_uses_the_shorthand(config, tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "config.yaml").write_text("defaults:\n  - base\n  - override reward: model:/m/x-1.5\n  - _self_\n")
    assert config(recipe=folder).reward == ModelRewardConfig(path="/m/x-1.5")


def test_a_recipe_brings_options_of_its_own(config, tmp_path):
    recipe = _recipe(tmp_path, "")
    (recipe / "algo").mkdir()
    (recipe / "algo" / "my.yaml").write_text("defaults:\n  - ppo\n  - _self_\nkl_coef: 0.77\n")
    got = config("algo=my", recipe=recipe).algo
    assert (type(got), got.kl_coef) == (PPOConfig, 0.77)


def test_a_recipe_option_wins_over_the_built_in_one_of_its_name(config, tmp_path):
    recipe = _recipe(tmp_path, "")
    (recipe / "rollout").mkdir()
    (recipe / "rollout" / "default.yaml").write_text("temperature: 0.5\n")
    assert config(recipe=recipe).rollout.temperature == 0.5


def test_relative_paths_of_a_recipe_are_its_own_and_typed_ones_are_of_the_working_folder(config, tmp_path):
    recipe = _recipe(tmp_path, "data:\n  path: prompts.jsonl\n  chat_template: chat.jinja\nmodel:\n  path: ./policy\n")
    for folder in (recipe, Path.cwd()):
        (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
        (folder / "policy").mkdir()
    got = config(recipe=recipe)
    assert got.data.path == str(recipe / "prompts.jsonl")
    assert got.data.chat_template == str(recipe / "chat.jinja")
    assert Path(got.model.path) == recipe / "policy"
    typed = config("data.path=prompts.jsonl", "model=hf:policy", recipe=recipe)
    assert typed.data.path == str(Path.cwd() / "prompts.jsonl")
    assert typed.model.path == str(Path.cwd() / "policy")


def test_relative_paths_in_a_sweep_are_of_the_working_folder(jobs):
    (Path.cwd() / "rm").mkdir()
    members = jobs("-m", "reward=model:rm,model:./rm", "seed=0")
    assert [m.config.reward.path for m in members] == [str(Path.cwd() / "rm")] * 2


def test_a_name_that_is_no_path_here_stays_a_hub_id(config):
    got = config("model=hf:org/name", "reward=model:name-rm")
    assert (got.model.path, got.reward.path) == ("org/name", "name-rm")


def test_import_paths_are_the_recipe_then_the_working_folder(config, tmp_path):
    recipe = _recipe(tmp_path, "")
    assert config(recipe=recipe).run.import_paths == [str(recipe), str(Path.cwd())]
    assert config().run.import_paths == [str(Path.cwd())]


def test_errors_in_a_recipe_run_are_explained_too(refused, tmp_path):
    recipe = _recipe(tmp_path, "seed: 3\n")
    assert refused("optim.lr=fast", recipe=recipe) == [
        "error: the config cannot be composed",
        "  why:  optim.lr: Value 'fast' of type 'str' could not be converted to Float",
        "  try:  rlctl train --help lists every option and key",
    ]


def test_runs_of_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "12-00-00" if "H" in form else "2024-01-31")
    made = []
    for _ in range(3):
        compose._fresh_dir.cache_clear()
        made.append(Path(compose._fresh_dir(str(tmp_path))))
    assert [p.name for p in made] == ["12-00-00", "12-00-00_2", "12-00-00_3"]
    assert all(p.is_dir() for p in made)


# the options and their documentation


def _option_files() -> list[tuple[str, str]]:
    return sorted((p.parent.name, p.stem) for p in conf_dir().glob("*/*.yaml"))


def _by_group() -> dict[str, list[str]]:
    return {group: [o for g, o in _option_files() if g == group] for group, _ in _option_files()}


@pytest.mark.parametrize("turn", range(max(map(len, _by_group().values()))))
def test_every_option_composes(jobs, turn):
    """Each turn takes one option of every group; together the turns take all. Not all of them go together."""
    chosen = {group: options[turn % len(options)] for group, options in _by_group().items()}
    (job,) = jobs(*(f"{group}={option}" for group, option in chosen.items()), check=False)
    got = job.config
    named = {"algo": got.algo.name, "reward": got.reward.kind, "value": got.value.init, "console": got.console.mode}
    assert named == {group: chosen[group] for group in named}
    assert (got.debug.max_steps, got.debug.checks) == {"none": (None, False), "smoke": (2, True), "checks": (None, True)}[chosen["debug"]]
    assert (got.launch.device, got.launch.strategy) == {
        "auto": ("auto", None), "cpu": ("cpu", None), "gpu": ("cuda", None),
        "ddp": ("auto", "ddp"), "fsdp": ("auto", "fsdp"), "deepspeed": ("auto", "deepspeed"),
    }[chosen["launch"]]  # fmt: skip


def test_there_is_an_option_for_every_group_of_the_schema():
    groups = {f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)}
    assert {g for g, _ in _option_files()} == groups


def test_every_key_is_documented_and_has_the_default_that_it_shows():
    keys = [k for _, _, keys in describe.groups() for k in keys]
    assert len(keys) > 60
    assert [k.name for k in keys if not k.doc] == []
    shown = {k.name: k.default for k in keys}
    assert (shown["optim.lr"], shown["run.save_value"], shown["rollout.temperature"]) == ("null", "false", "1.0")


def _options_in_help(group: str) -> list[str]:
    """What --help lists for a group."""
    lines = help_text.train().partition("config groups")[2].splitlines()
    line = next(x for x in lines if x.startswith(f"  {group} "))
    return [word.strip() for word in line.removeprefix(f"  {group}").split(",")]


@pytest.mark.parametrize("group", sorted({g for g, _ in _option_files()}))
def test_help_mentions_every_option(group):
    assert {o for g, o in _option_files() if g == group} <= set(_options_in_help(group))


@pytest.mark.parametrize(("group", "kind"), compose.shorthand.KINDS)
def test_help_mentions_every_shorthand(group, kind):
    assert kind in [option.partition(":")[0] for option in _options_in_help(group) if ":" in option]


def test_help_mentions_every_key():
    text = help_text.train()
    groups = {g for g, _ in _option_files()}
    assert [key for key in describe.known_keys() if f"  {key} (" not in text and key not in groups] == []


def test_help_says_what_step_epoch_and_update_mean():
    lines = help_text.train().splitlines()
    for word in ("score", "step", "epoch", "update"):
        assert any(line.startswith(f"  {word} ") for line in lines)


def test_a_recipe_key_of_an_option_that_was_replaced_names_its_owner(refused, tmp_path):
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    text = "defaults: [base, override reward: calibrated, _self_]\nreward: {base: fn:a.b}\n"
    (recipe / "config.yaml").write_text(text)
    got = refused("reward=model", recipe=recipe)
    assert got[1] == "  why:  reward.base: the chosen options have no such key; reward=calibrated has it"
