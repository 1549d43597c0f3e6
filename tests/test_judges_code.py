"""The code judge with real processes: what passes, what fails, and that nothing is left of what a response did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from rlctl.config.judges import JudgeConfig, JudgeKind
from rlctl.data import Prompt, Prompts
from rlctl.errors import DataError, RewardError
from rlctl.judges import sandbox
from rlctl.judges.code import CodeJudge, code_of, joined_tests
from rlctl.judges.sandbox import Isolation, Limits, Program, run
from rlctl.rollout import Samples

SECONDS = 1.0
LIMITS = Limits(SECONDS, 512)
# rows in the form of HumanEval
HUMANEVAL = [
    {
        "prompt": 'from typing import List\n\n\ndef below(numbers: List[int], limit: int) -> bool:\n    """Are all below the limit?"""\n',
        "canonical_solution": "    return all(n < limit for n in numbers)\n",
        "wrong": "    return any(n < limit for n in numbers)\n",
        "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2], 3)\n    assert not candidate([1, 5], 3)\n",
        "entry_point": "below",
    },
    {
        "prompt": 'def twice(text: str) -> str:\n    """The text, two times."""\n',
        "canonical_solution": "    return text * 2\n",
        "wrong": "    return text\n",
        "test": "def check(candidate):\n    assert candidate('ab') == 'abab'\n    assert candidate('') == ''\n",
        "entry_point": "twice",
    },
]


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """Each test has a temporary folder of its own; afterwards it is empty, and no process works in it or knows of it."""
    folder = Path(tempfile.mkdtemp(prefix="rlctl-test-"))
    os.chmod(folder, 0o755)  # another user must be able to reach the folders in it
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    left = [str(p) for p in folder.iterdir()]
    shutil.rmtree(folder)
    assert left == []
    assert _processes_of(folder) == []


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            about = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode() + f" in {os.readlink(process / 'cwd')}"
        except OSError:  # it ended meanwhile, or is another user's
            continue
        if str(folder) in about:
            found.append(about)
    return found


def _parent(process: Path) -> str:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def _run(code: str, tests: str = "", **limits: float) -> tuple[bool | None, str]:
    began = time.monotonic()
    outcome = run(Program(textwrap.dedent(code), tests), Limits(limits.get("seconds", SECONDS), 512))
    assert time.monotonic() - began < limits.get("seconds", SECONDS) + 5
    return outcome.passed, outcome.why


def _judge(**keys) -> CodeJudge:
    return CodeJudge(JudgeConfig(JudgeKind.code, column="test", timeout=SECONDS, memory_mb=512, **keys))


def _samples(prompts: list[str], responses: list[str], **columns) -> Samples:
    texts = [p + r for p, r in zip(prompts, responses, strict=True)]
    return Samples(prompts, responses, texts, columns, None, [False] * len(texts))


def _humaneval(key: str, fenced: bool = False) -> Samples:
    responses = [r[key] for r in HUMANEVAL]
    if fenced:
        responses = [f"Here it is:\n\n```python\n{r['prompt']}{r[key]}```\nDone." for r in HUMANEVAL]
    return _samples([r["prompt"] for r in HUMANEVAL], responses, **{k: [r[k] for r in HUMANEVAL] for k in ("test", "entry_point")})


def _prompts(rows: list[dict]) -> Prompts:
    items = [Prompt(i, [1], "p", None, row) for i, row in enumerate(rows)]
    return Prompts(items, list(rows[0]), 0, False, 0)


# right and wrong programs


def test_rows_of_humaneval():
    judge = _judge(entry_point_column="entry_point", with_prompt=True)
    judge.check(_prompts(HUMANEVAL))
    assert judge.judge(_humaneval("canonical_solution")) == [True, True]
    assert judge.judge(_humaneval("wrong")) == [False, False]
    chat = _judge(entry_point_column="entry_point")
    assert chat.judge(_humaneval("canonical_solution", fenced=True)) == [True, True]
    assert chat.judge(_humaneval("wrong", fenced=True)) == [False, False]
    assert chat.judge(_humaneval("canonical_solution")) == [False, False]


def test_a_list_of_assertions_as_in_mbpp():
    tests = [["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]] * 3
    responses = ["def add(a, b): return a + b", "def add(a, b): return 3", "def add(a, b) return"]
    samples = _samples([""] * 3, responses, test=tests)
    assert _judge().judge(samples) == [True, False, False]
    assert _judge().outcome(samples, 1).why == "the tests: AssertionError: "
    assert _judge().outcome(samples, 2).why == "the response: SyntaxError: expected ':' (<response>, line 1)"


def test_a_row_without_tests_cannot_be_judged():
    judge = _judge()
    assert judge.judge(_samples([""] * 3, ["x = 1"] * 3, test=[None, "", "assert x"])) == [None, None, True]
    (warning,) = judge.warnings()
    assert warning.what == "judge code could not run 2 responses; they count as not satisfied"
    assert joined_tests(["a", 1]) is None


def test_many_responses_at_once_keep_their_order():
    n = 12
    samples = _samples([""] * n, [f"x = {i}" for i in range(n)], test=[f"assert x == {i if i % 3 else -1}" for i in range(n)])
    assert _judge().judge(samples) == [bool(i % 3) for i in range(n)]


def test_the_code_of_a_response():
    assert code_of("```\na\n```\n```python\nb\n```\n```\nc\n```") == "b\n"
    assert code_of("```\na\n```\n```\nc\n```") == "c\n"
    assert code_of("```py\ncut off") == "cut off"
    assert code_of("````python\ns = '''\n```\n'''\n````") == "s = '''\n```\n'''\n"
    assert code_of("x = 1") == "x = 1"


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = 1\nx = A().a",
        "import asyncio\nasync def f(): return 1\nx = asyncio.run(f())",
        "open('f.txt', 'w').write('1'); x = int(open('f.txt').read())",
        "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'1')\nx = 1",
        "if __name__ == '__main__': input()\nx = 1",
        "print('much ' * 100_000); x = 1",
        "import numpy as np; x = int(np.dot(np.ones((50, 50)), np.ones(50))[0]) // 50",
        "import sys\nsys.setrecursionlimit(5000)\ndef f(n): return 1 if n == 0 else f(n - 1)\nx = f(2000)",
    ],
)
def test_harmless_programs_pass(code):
    assert _run(code, "assert x == 1", seconds=5.0) == (True, "passed")


# programs that must not pass, and leave nothing


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "took longer than 1 seconds"),
        ("import time\ntime.sleep(1000)", "took longer than 1 seconds"),
        ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(20)",
         "took longer than 1 seconds"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "took longer than 1 seconds"),
        ("while True: print('x' * 100_000)", "took longer than 1 seconds"),
        ("import sys\nsys.exit(0)", "the response: SystemExit: 0"),
        ("import os\nos._exit(0)", "ended before its tests did"),
        ("raise KeyboardInterrupt", "the response: KeyboardInterrupt: "),
        ("input()", "the response: EOFError: EOF when reading a line"),
        ("import os\nos.fork()", "os.fork is not allowed"),
        ("import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)", "subprocess.Popen is not allowed"),
        ("import os\nos.system('setsid sleep 1000 &')", "os.system is not allowed"),
        ("import os\nos.execv('/bin/sh', ['sh', '-c', 'kill -9 $PPID'])", "os.exec is not allowed"),
        ("import multiprocessing as m\nm.Process(target=print).start()", "os.fork is not allowed"),
        ("import ctypes\nctypes.CDLL(None).fork()", "ctypes.dlsym is not allowed"),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "os.kill is not allowed"),
        ("import os\nos.killpg(0, 9)", "os.killpg is not allowed"),
        ("import signal, os\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
         "the response: AttributeError: module 'signal' has no attribute 'pidfd_send_signal'"),
        ("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)", "socket.getaddrinfo is not allowed"),
        ("import socket\nsocket.socket().connect(('192.0.2.1', 80))", "socket.connect is not allowed"),
        ("open('big', 'wb').write(b'x' * (3 << 20))", "the response: OSError: [Errno 27] File too large"),
        ("def f(): return f()\nf()", "the response: RecursionError: maximum recursion depth exceeded"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "the response: E"),
    ],
)  # fmt: skip
def test_what_must_not_pass_fails_in_time(code, why):
    """Also where it would pass its tests if it could go on after a refusal."""
    passed, said = _run(code)
    assert passed is False
    assert said == why or said.startswith(why)


def test_a_refusal_cannot_be_caught():
    code = "import os\ntry:\n    os.fork()\nexcept BaseException: pass\nx = 1"
    assert _run(code, "assert x == 1") == (False, "os.fork is not allowed")


def test_memory_without_end():
    assert _run("b = []\nwhile True: b.append(bytearray(1 << 20))", seconds=5.0) == (False, "the response: MemoryError: ")


def test_nothing_is_written_outside_the_folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    os.chmod(outside, 0o777)
    (outside / "kept").write_text("as it was")
    os.chmod(outside / "kept", 0o666)
    for code in (
        f"open({str(outside / 'new')!r}, 'w')",
        f"open({str(outside / 'kept')!r}, 'r+').write('x')",
        f"import os\nos.remove({str(outside / 'kept')!r})",
        f"import os\nos.rename({str(outside / 'kept')!r}, 'mine')",
        f"import os\nos.symlink({str(outside)!r}, 'link')\nopen('link/new', 'w')",
        f"import os\nos.chdir({str(outside)!r})\nopen('new', 'w')",
        f"import pathlib\npathlib.Path({str(outside / 'a' / 'b')!r}).mkdir(parents=True)",
        f"import sqlite3\nsqlite3.connect({str(outside / 'new')!r})",
    ):
        passed, why = _run(code)
        assert passed is False and "outside its folder" in why, (code, why)
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("kept", "as it was")]


def test_what_it_makes_is_bounded_and_removed():
    assert _run("import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')") == (False, "made more than 100 files")
    closed = "import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').close()\nos.chmod('d/e', 0)\nos.chmod('d', 0)\nx = 1"
    assert _run(closed, "assert x == 1") == (True, "passed")


def test_it_sees_nothing_of_this_process(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    code = """
        import json, os, sys
        raise Exception(json.dumps([sorted(os.environ), sys.argv, os.listdir("."), os.getsid(0) == os.getpid(),
                                    sorted(int(f) for f in os.listdir("/dev/fd"))[:3]]))
    """
    passed, why = _run(code)
    assert passed is False
    names, argv, files, leader, handles = json.loads(why.partition("Exception: ")[2])
    assert names == ["HOME", "LC_ALL", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TMPDIR"]
    assert (argv, files, leader, handles) == (["solution"], [], True, [0, 1, 2])


def test_this_process_goes_on_after_all_of_it():
    code = ["import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "import os\nos._exit(0)", "while True: pass", "x = 1"]
    assert _judge().judge(_samples([""] * 4, code, test=["assert x == 1"] * 4)) == [False, False, False, True]


def test_what_it_says_for_its_tests_is_not_believed():
    """It can write to every handle it has, but does not know the word that only comes after the tests."""
    code = """
        import os
        for handle in range(3, 20):
            try:
                os.write(handle, b'{"passed": true}\\n{"passed": ""}\\n')
            except OSError: pass
        os._exit(0)
    """
    assert _run(code) == (False, "ended before its tests did")
    flood = "import os\nfor h in range(3, 20):\n  try:\n    while True: os.write(h, b'x' * 1000)\n  except OSError: pass"
    assert _run(flood)[0] is False


# what the system enforces beneath Python's hooks

_RAW_FORK = """
    import _posixsubprocess, os, sys
    r, w = os.pipe()
    pid = _posixsubprocess.fork_exec([b"/bin/sh", b"-c", b"exit"], (b"/bin/sh",), True, (), None, None, -1, -1, -1, -1, -1, -1,
                                     r, w, False, True, -1, None, None, None, -1, None, False)
"""


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info[:2] != (3, 11), reason="calls what is private to a version")
def test_no_process_starts_even_past_the_hooks():
    isolation = run(Program("", ""), LIMITS).isolation
    if isolation is None or not isolation.no_processes:
        pytest.skip("this system does not enforce it")
    assert _run(_RAW_FORK)[1].startswith("the response: BlockingIOError")
    threads = "import threading\nthreading.Thread(target=print).start()"
    assert _run(threads) == (False, "the response: RuntimeError: can't start new thread")


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="root alone can change user")
def test_root_becomes_nobody_and_loses_its_rights():
    outcome = run(Program("import os", "raise Exception(os.getresuid(), os.getgroups())"), LIMITS)
    if outcome.isolation is None or not outcome.isolation.other_user:
        pytest.skip("this root may not change user")
    assert "65534, 65534, 65534" in outcome.why and "[]" in outcome.why
    assert _run("import os\nos.setuid(0)")[1].startswith("the response: PermissionError")
    caps = "caps = [l for l in open('/proc/self/status') if l.startswith('CapEff')][0].split()[1]"
    assert _run(caps, "assert int(caps, 16) in (0, 4), caps") == (True, "passed")  # at most the right to read


def test_what_is_lacking_is_said():
    judge = _judge()
    judge.isolation = Isolation(memory=True, no_processes=False, other_user=False, no_network=False)
    assert [w.what for w in judge.warnings()] == [
        "judge code: only Python's own hooks keep a response from starting processes, reaching the network"
    ]
    assert Isolation(True, True, True, True).lacking() == []


def test_the_child_ends_when_its_parent_is_killed():
    """A run that is killed leaves no program behind."""
    code = "from rlctl.judges.sandbox import *; run(Program('import time; time.sleep(60)', ''), Limits(60, 512))"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": tempfile.gettempdir()})
    try:
        child = _wait_for(lambda: _child_of(parent.pid))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        if sys.platform == "linux":
            assert _wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in _state(child))
    finally:
        parent.kill()
        parent.wait()
    for left in Path(tempfile.gettempdir()).glob("rlctl-judge-*"):  # which nobody is left to remove
        sandbox.remove(left)


def _child_of(pid: int) -> int | None:
    for path in Path("/proc").glob("[0-9]*"):
        if _parent(path) == str(pid) and b"child.py" in path.joinpath("cmdline").read_bytes():
            time.sleep(0.3)  # until it is ready
            return int(path.name)
    return None


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _wait_for(what):
    for _ in range(200):
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_what_cannot_be_started_is_not_judged(monkeypatch):
    monkeypatch.setattr(sandbox.subprocess, "Popen", lambda *a, **k: (_ for _ in ()).throw(OSError(11, "no more processes")))
    outcome = run(Program("", ""), LIMITS)
    assert (outcome.passed, outcome.why) == (None, "BlockingIOError: [Errno 11] no more processes")


def test_a_child_that_cannot_set_up_is_not_judged(monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    outcome = run(Program("", ""), LIMITS)
    assert (outcome.passed, outcome.why) == (None, "the child process could not be set up: it ended with status 3")
    with pytest.raises(RewardError) as caught:
        _judge().check(_prompts([{"test": "pass"}]))
    assert caught.value.what == "judge code cannot run code here"


# what the data lack


@pytest.mark.parametrize(
    ("row", "keys", "what"),
    [
        ({"tests": "pass"}, {}, "judge code: the data have no column 'test'"),
        ({"test": None}, {}, "judge code: row 0 has no tests"),
        ({"test": [1]}, {}, "judge code: row 0 has no tests"),
        ({"test": "assert ("}, {}, "judge code: the tests of row 0 are not Python"),
        ({"test": "pass"}, {"entry_point_column": "entry"}, "judge code: the data have no column 'entry'"),
        ({"test": "pass", "entry": "f"}, {"entry_point_column": "entry"}, "judge code: the tests of row 0 define no check(candidate)"),
        ({"test": "def check(f): pass", "entry": "f()"}, {"entry_point_column": "entry"}, "judge code: row 0 names no function"),
    ],
)
def test_what_the_data_lack_is_found_before_training(row, keys, what):
    with pytest.raises(DataError) as caught:
        _judge(**keys).check(_prompts([row]))
    assert caught.value.what == what
