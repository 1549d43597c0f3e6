"""The documentation says what is: commands run, overrides exist, quotations are what rlctl prints, links lead somewhere."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pages
import pytest
from pages import EXTENDING, KEYS, PAGES, README, ROOT

import rlctl
from rlctl import cli
from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import compose, describe, reference
from rlctl.config.checks import problems
from rlctl.config.schema import OPTIONS, Config, FunctionRewardConfig
from rlctl.errors import RlctlError
from rlctl.metrics import METRICS

NOT_RUN = {
    "pip install .": "installs; .ci/run does it in an environment of its own",
    'pip install -e ".[test]"': "installs; .ci/run does it in an environment of its own",
    'pip install "math-verify[antlr4_9_3]"': "installs; the extra `test` holds it",
    'pip install ".[lora]"': "installs; the extra `test` holds it",
    'pip install ".[sweep]"': "installs; the extra `test` holds it",
    "OMP_NUM_THREADS=1 python -m pytest -n 2": "this suite; .ci/run runs the line as it stands in the README",
    "python -m pytest -m slow tests/test_optimum.py": "a part of this suite",
    "python tests/bench/prompt_shift.py": "a benchmark of half an hour",
    "rlctl sft model=hf:PATH_OR_HUB_ID data=file:texts.jsonl hydra.run.dir=outputs/sft": "tests/test_stages.py, on tiny models",
    "rlctl rm model=hf:outputs/sft/policy data=file:pairs.jsonl hydra.run.dir=outputs/rm": "tests/test_stages.py, on tiny models",
    "torchrun --nproc-per-node 4 -m rlctl train reward=fn:mypkg.count_good": "tests/test_launch.py, with two processes",
    "accelerate launch --config_file accelerate.yaml -m rlctl train reward=fn:mypkg.count_good": "tests/test_launch.py",
    "srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 rlctl train launch.machines=2 launch.processes=8": "needs SLURM",
    "rlctl train -m seed=0,1 launch.machines=2 launch.processes=8 hydra/launcher=submitit_slurm "
    "'hydra.launcher={nodes: 2, gpus_per_node: 8}'": "needs SLURM",
    "python tests/bench/processes.py": "needs GPUs",
    "OMP_NUM_THREADS=1 python tests/bench/step_cost.py": "a benchmark, whose numbers need a machine of its own",
}
BY_THEMSELVES = {
    "rlctl train --help", "rlctl train --cfg job", "rlctl resume RUN_DIR", "rlctl resume RUN_DIR run.steps=50",
    "rlctl runs", "rlctl runs multirun/DATE/TIME --sort best", "rlctl runs --json",
    "rlctl recipes", "rlctl new count_good mine", "rlctl check RECIPE", "python -m rlctl.config.reference",
}  # fmt: skip
"""Each in a test of its own."""
SMALL = ["run.steps=2", "rollout.prompts_per_step=4", "rollout.max_new_tokens=3", "console.mode=plain", "run.tracker=none"]
BUILTIN = Path(rlctl.__file__).parent / "builtin"
EVERY = [(page, c) for page in PAGES for c in pages.commands(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the pages speak of: their own files, prompts, recipes. Afterwards nothing imported from it or logged to is left."""
    for page in (README, EXTENDING):
        for name, text in pages.files(page).items():
            path = tmp_path / ("myrecipe" if name.endswith(".yaml") else "") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    shutil.copytree(ROOT / "recipes" / "count_good", tmp_path / "mine")
    (tmp_path / "myrecipe" / "config.yaml").write_text("defaults: [base, _self_]\n")
    shutil.copy(tmp_path / "algorithms.py", tmp_path / "myrecipe")
    row = {"prompt": "1 + 1 =", "answer": "2", "solution": "$2$", "reference": " 2"}
    (tmp_path / "prompts.jsonl").write_text((json.dumps(row) + "\n") * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    importlib.invalidate_caches()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield tmp_path
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def _typed(command: str, **places: str) -> list[str]:
    """A command's arguments with real things in the place of what stands for the user's."""
    for placeholder, real in {
        "model=hf:PATH_OR_HUB_ID": f"model=hf:{BUILTIN / 'policy'}",
        "reward=model:PATH_OR_HUB_ID": f"reward=model:{BUILTIN / 'reward'}",
        **places,
    }.items():
        command = command.replace(placeholder, real)
    return shlex.split(command)[1:]


def _jobs(argv: list[str]) -> list[compose.Job]:
    """What the arguments of rlctl train or score compose to: one job, or a sweep's."""
    compose._fresh_dir.cache_clear()
    jobs: list[compose.Job] = []
    recipe, argv = take_recipe(argv[1:])
    compose.run(argv, recipe, jobs.append)
    return jobs


def _is_composed(command: str) -> bool:
    return command.startswith(("rlctl train", "rlctl score")) and "--" not in command and command not in NOT_RUN


# commands


def test_every_command_is_run_or_is_said_not_to_be():
    known = {c for _, c in EVERY if _is_composed(c)} | BY_THEMSELVES | set(NOT_RUN)
    assert sorted({c for _, c in EVERY} - known) == []
    assert sorted(set(NOT_RUN) - {c for _, c in EVERY}) == []
    assert len({c for _, c in EVERY if _is_composed(c)}) >= 14


@pytest.mark.parametrize("command", [c for c in NOT_RUN if "tests/" in c])
def test_what_is_not_run_is_there(command):
    assert (ROOT / command.split()[-1]).is_file()


@pytest.mark.parametrize("command", list(dict.fromkeys(c for _, c in EVERY if _is_composed(c))))
def test_every_command_composes_to_a_sound_config(folder, command):
    jobs = _jobs(_typed(command))
    assert len(jobs) == (4 if " -m " in command else 1)
    for job in jobs:
        assert problems(job.config) == []


def test_the_sweep_is_the_product_of_its_values(folder):
    (command,) = [c for c in pages.commands(README) if c.startswith("rlctl train -m ") and c not in NOT_RUN]
    found = [(job.config.algo.kl_coef, job.config.seed) for job in _jobs(_typed(command))]
    assert found == list(itertools.product((0.02, 0.2), (0, 1)))


def test_commands_that_print_a_page(folder, capsys):
    assert cli.main(["train", "--help"]) == 0
    assert "algo.kl_coef" in capsys.readouterr().out
    assert cli.main(["train", "--cfg", "job"]) == 0
    assert "kl_coef: 0.05" in capsys.readouterr().out


def _run(*argv: str) -> int:
    compose._fresh_dir.cache_clear()
    return cli.main([*argv])


def test_the_first_command_and_going_on(folder, capfd):
    """A run, its interrupted twin of half the length by run.resume=auto, and rlctl resume, as the README has them."""
    first, start = pages.commands(README)[0], next(c for c in pages.commands(README) if "run.resume=auto" in c)
    assert _run(*_typed(first), *SMALL) == 0
    once = [*_typed(start), *SMALL, "run.save_every=1"]
    assert _run(*once) == 0
    assert _run(*once) == 0
    assert "finished before" in capfd.readouterr().out
    longer = next(c for c in pages.commands(README) if c.startswith("rlctl resume RUN_DIR "))
    assert _run(*_typed(longer, RUN_DIR="runs/first")[:-1], "run.steps=3") == 0
    assert [json.loads(line)["step"] for line in (folder / "runs/first/metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_commands_that_look_at_runs_and_recipes(folder, capfd):
    assert _run("train", *SMALL, "run.steps=1", "hydra.run.dir=multirun/DATE/TIME/0", "seed=7") == 0
    capfd.readouterr()
    for command in (c for c in pages.commands(README) if c.startswith("rlctl runs")):
        assert _run(*_typed(command)) == 0
        assert "multirun/DATE/TIME" in capfd.readouterr().out, command
    assert _run("recipes") == 0
    assert "count_good" in capfd.readouterr().out
    shutil.rmtree(folder / "mine")
    assert _run(*_typed("rlctl new count_good mine")) == 0
    assert (folder / "mine" / "config.yaml").is_file()


@pytest.mark.slow
def test_the_command_that_checks_a_recipe(folder):
    assert _run(*_typed("rlctl check RECIPE", RECIPE="mine")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", list(dict.fromkeys(c for _, c in EVERY if _is_composed(c))))
def test_every_command_runs(folder, command):
    with scorer([]) as url:
        argv = _typed(command, **{"http://localhost:8000/score": url})
        small = [] if argv[0] == "score" else SMALL
        assert _run(*argv, *small, *([] if "-m" in argv or not small else ["hydra.run.dir=out"])) == 0
    if argv[0] == "train" and "-m" not in argv:
        rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2]


# overrides and keys


def _owner(key: str) -> Config:
    """A config whose options have the key."""
    group, _, name = key.partition(".")
    for cls in OPTIONS.get(group, {}).values():
        if name.partition(".")[0] in cls.__dataclass_fields__:
            return Config(**{group: cls()})
    return Config()


@pytest.mark.parametrize("override", list(dict.fromkeys(o for page in PAGES for o in pages.overrides(page))))
def test_every_override_can_be_set(folder, override):
    key = override.partition("=")[0]
    if "." not in key:
        assert problems(_jobs(["train", override])[0].config)[1:] == []  # weighted alone lacks its terms
        return
    assert key in describe.known_keys() or compose.explain.is_argument(key)
    if compose.explain.is_argument(key):
        return
    # what an override needs beside it is no fault of its own
    beside = {"algo.score_clip", "algo.violation_score"}
    found = problems(compose.changed(_owner(key), [override]))
    assert [line for line in found if line.startswith(f"{key}=") and key not in beside] == []


def test_every_config_of_a_page_composes(folder):
    """YAML as a recipe's config.yaml, with the options it asks for."""
    texts = [text for _, text in pages.blocks(README, "yaml")]
    assert len(texts) == 3
    for i, text in enumerate(texts):
        recipe = folder / f"recipe{i}"
        recipe.mkdir()
        group = "override reward: weighted" if "terms:" in text else "override algo: cgpo"
        text = text if "defaults:" in text else f"defaults: [base, {group}, _self_]\n{text}"
        (recipe / "config.yaml").write_text(text)
        (job,) = _jobs(["train", str(recipe)])
        assert problems(job.config) == [], text
    assert [t.weight for t in job.config.tasks.values()] == [1.0, 0.5]


def test_the_reference_is_current():
    assert reference.text() == KEYS.read_text(), "python -m rlctl.config.reference writes it anew"


def test_the_reference_holds_every_key_metric_and_option():
    text = KEYS.read_text()
    assert [k for k in describe.known_keys() if "." in k and f"`{k}`" not in text] == []
    assert [m for m in METRICS if f"`{m}`" not in text] == []
    assert reference.metrics() == METRICS
    options = [(p.parent.name, p.stem) for p in (ROOT / "conf").glob("*/*.yaml") if p.parent.name != "hydra"]
    for group, option in options:
        section = text[text.index(f"| `{group}=` |") :]
        assert f"| `{option}` |" in section[: section.index("\n\n")], (group, option)


def test_the_reference_needs_no_torch():
    code = "import sys; from rlctl.config import reference; reference.text(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_table_of_options_in_the_readme_is_whole():
    for group in ("algo", "reward", "value", "console", "launch", "debug"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert re.search(rf"\| `{group}`.*`{path.stem}[`:]|, `{group}` \|.*`{path.stem}`", README.read_text()), (group, path.stem)


# words


def _symptoms() -> list[tuple[str, str, str]]:
    """(what is seen, what it is, what to change) of the table."""
    section = README.read_text().partition("## When it goes wrong")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ") and "|---" not in line]
    return [(a.strip(), b.strip(), c.strip()) for a, b, c in rows[1:]]


def test_what_the_table_of_symptoms_quotes_is_printed():
    source = "".join(path.read_text() for path in (ROOT / "rlctl").rglob("*.py"))
    quoted = [q for seen, _, _ in _symptoms() for q in re.findall(r"`([^`]+)`", seen) if " " in q]
    assert len(quoted) >= 11
    assert [q for q in quoted if q not in source] == []


def test_metrics_that_a_page_names_are_measured():
    groups = {name.partition("/")[0] for name in METRICS}
    named = {c for page in PAGES for c in re.findall(r"`(\w+/[\w<>/]+)`", page.read_text()) if c.partition("/")[0] in groups}
    assert len(named) > 50
    plain = {re.sub(r"NAME|baseline$", "<name>", n.removeprefix("tasks/math/")) for n in named}
    assert sorted(plain - set(METRICS) - {"reward/<name>"}) == []


def test_no_line_of_prose_is_too_long_and_every_link_leads_somewhere():
    for page in PAGES:
        for to in pages.links(page):
            name, _, anchor = to.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {to}"
            assert not anchor or anchor in pages.anchors(target), f"{page.name}: {to}"
    for page in (README, EXTENDING):
        assert [line for line in page.read_text().splitlines() if len(line) > 150 and not line.startswith("|")] == []


# ready rewards


@pytest.fixture
def scored(folder: Path) -> Callable[..., Any]:
    """Scores of a function on responses, with columns."""
    from rlctl.rewards.function import FunctionReward
    from rlctl.rollout import Samples

    sys.path.insert(0, str(folder))

    def score(path: str, responses: list[str], more: dict[str, Any] | None = None, **columns: list[str]) -> list[float]:
        reward = FunctionReward(FunctionRewardConfig(path=path, **(more or {})))
        reward.check_columns(list(columns))
        prompts = ["p "] * len(responses)
        texts = [p + r for p, r in zip(prompts, responses, strict=True)]
        n = len(responses)
        return reward.score(Samples(prompts, responses, texts, columns, None, [False] * n, list(range(n))))

    return score


def test_rewards_of_trl_run_as_they_are(scored):
    boxed = ["<think>\nso\n</think>\nIt is \\boxed{\\frac{1}{3}}", "\\boxed{\\frac{1}{2}}"]
    solution = ["$\\frac{1}{3}$"] * 2
    table = re.findall(r"^\| `(trl\.rewards\.\w+)` \|.*\| (.*) \|$", EXTENDING.read_text(), re.M)
    assert [column for _, column in table] == ["none", "`solution`", "`solution`"]
    assert [scored(path, boxed, solution=solution) for path, _ in table] == [[1.0, 0.0]] * 3
    for path, column in table[1:]:
        with pytest.raises(RlctlError) as caught:
            scored(path, boxed)
        assert f"requires {column.strip('`')!r}" in caught.value.what


def test_a_reward_of_trl_that_abstains_belongs_into_a_weighted_sum(scored):
    with pytest.raises(RlctlError) as caught:
        scored("trl.rewards.accuracy_reward", ["\\boxed{2}"], solution=["no formula"])
    assert "None (abstain) has a meaning only inside a weighted sum" in str(caught.value)


def test_rewards_that_trl_makes_run_on_words(scored):
    assert scored("ready.no_repeats", ["a b c a b c", "a b c d", "a"]) == pytest.approx([-0.25, 0.0, 0.0])
    assert scored("ready.not_too_long", ["w " * 80, "w " * 90, "w " * 101]) == pytest.approx([0.0, -0.5, -1.0])
    long, short = "\\boxed{2}" + " w" * 99, "\\boxed{2}"
    right = scored("ready.right_and_short", [short, long, "\\boxed{3}"], solution=["$2$"] * 3)
    assert right[0] > 0.99 and right[1] == pytest.approx(0.5) and right[2] < -0.99


def test_a_verifier_scores_answers(scored):
    assert scored("verifier.correct", ["It is 2/4.", "$0.5$", "1"], answer=["0.5", "1/2", "0.5"]) == [1.0, 1.0, 0.0]


@contextmanager
def scorer(statuses: list[int]) -> Iterator[str]:
    """A server that counts words, after answering its first requests with these statuses; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = statuses.pop(0) if statuses else 200
            self.send_response(status)
            self.end_headers()
            if status == 200:
                scores = [float(len((p + r).split())) for p, r in zip(asked["prompts"], asked["responses"], strict=True)]
                self.wfile.write(json.dumps({"scores": scores}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_scorer_behind_http_is_asked_again_after_a_failure(scored):
    statuses = [503, 500]
    with scorer(statuses) as url:
        more = {"args": {"url": url}, "retries": 3, "retry_pause": 0.01, "timeout": 30.0}
        assert scored("remote.remote", ["a b", "c"], more) == [3.0, 2.0]
        assert statuses == []
        statuses += [503] * 4
        with pytest.raises(RlctlError) as caught:
            scored("remote.remote", ["a"], more)
    assert caught.value.what == "reward fn:remote.remote raised HTTPError, 4 times"
    with pytest.raises(RlctlError) as caught:
        scored("remote.remote", ["a"], more)  # nobody answers any more
    assert caught.value.what == "reward fn:remote.remote raised URLError, 4 times"


def test_training_through_a_scorer_whose_first_answer_fails(folder, capfd):
    (command,) = [c for c in pages.commands(EXTENDING) if "remote" in c]
    statuses = [503]
    with scorer(statuses) as url:
        argv = _typed(command, **{"http://localhost:8000/score": url})
        assert _run(*argv, *SMALL, "run.steps=1", "reward.retry_pause=0.01", "hydra.run.dir=out") == 0
    assert statuses == []
    rows = [json.loads(line) for line in (folder / "out/samples/step_000001.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [len((row["prompt"] + row["response"]).split()) for row in rows]
