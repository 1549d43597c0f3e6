"""Where a run stands, in what precision it computes, and the ways to start several processes: each with real processes."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import test_processes as tools
import torch
import yaml
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from test_processes import TINY, lines, train
from tiny import Environment, Recording, batch_of
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlctl import devices, place
from rlctl.assemble import assemble
from rlctl.config import accelerate_file, checks, compose
from rlctl.config.fields import Dtype
from rlctl.config.schema import Config, Device, LaunchConfig, LoraConfig, MixedPrecision, ModelConfig, RolloutConfig, Strategy
from rlctl.continuing import FIXED, changes
from rlctl.distribute import distribute
from rlctl.errors import ConfigError, TrainingError
from rlctl.place import Place

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def launch(**keys) -> Config:
    return Config(launch=LaunchConfig(**keys))


def resolved(config: Config, own: Place | None = None, env: dict[str, str] | None = None) -> LaunchConfig:
    return place.resolve(config, own, env or {}).launch


def refusal(call, *args) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*args)
    return caught.value.lines()


# --- who started it


def test_a_process_that_nobody_but_the_user_started():
    assert place.started_by({}) is None
    assert place.started_by({"WORLD_SIZE": "1", "RANK": "0"}) is None  # a cluster's word for one machine
    assert place.started_by({"SLURM_NODEID": "1", "SLURM_NTASKS": "2"}) is None


def test_a_process_of_torchrun_or_of_accelerate_launch():
    assert place.started_by({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}) == Place("torchrun", 1, 4, 2)
    assert place.started_by({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no"}) == Place("accelerate launch", 1, 4, 2)
    assert place.started_by({"ACCELERATE_MIXED_PRECISION": "no"}) == Place("accelerate launch", 0, 1, 1)


def test_a_process_that_cannot_find_the_others_is_refused():
    assert refusal(place.started_by, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}) == [
        "error: started as one of 2 processes (RANK and WORLD_SIZE are set), but LOCAL_RANK, MASTER_PORT is not",
        "  why:  they are what processes find each other by",
        "  try:  torchrun sets them all; or start one process a machine with RANK and WORLD_SIZE unset: rlctl train launch.machines=N "
        "launch.machine_rank=K launch.main_address=HOST ...",
    ]


def test_the_launcher_says_how_many_there_are():
    got = resolved(launch(), Place("torchrun", 3, 4, 2))
    assert (got.processes, got.machines, got.machine_rank) == (2, 2, 1)
    assert resolved(launch(processes=2, machines=2), Place("torchrun", 0, 4, 2)) == replace(got, machine_rank=0)


def test_a_number_that_is_not_the_launchers_is_refused():
    assert refusal(resolved, launch(processes=3), Place("torchrun", 0, 4, 4)) == [
        "error: launch.processes=3, but torchrun started 4 processes on this machine",
        "  why:  where a launcher started the processes, it decides",
        "  try:  leave launch.processes out, or the launcher: rlctl train launch.processes=3 ...",
    ]
    alone = refusal(resolved, launch(machines=2), Place("torchrun", 0, 4, 4))[0]
    assert alone == "error: launch.machines=2, but torchrun runs on 1 machine"
    lone = refusal(resolved, launch(processes=2), Place("accelerate launch", 0, 1, 1))[0]
    assert lone == (
        "error: launch.processes=2, but accelerate launch started 1 process on this machine (on a CPU it starts one, whatever its "
        "num_processes)"
    )


def test_what_accelerate_launch_tells_is_done_or_refused():
    env = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "True", "ACCELERATE_DYNAMO_BACKEND": "NO"}
    own = Place("accelerate launch", 0, 2, 2)
    got = resolved(launch(), own, env)
    assert (got.mixed_precision, got.device, got.strategy) == (MixedPrecision.bf16, Device.cpu, Strategy.ddp)
    assert resolved(launch(mixed_precision=MixedPrecision.no), own, env).mixed_precision is MixedPrecision.no  # asked here
    sharded = {**env, "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    assert resolved(launch(), own, sharded).strategy is Strategy.fsdp
    other = refusal(resolved, launch(strategy=Strategy.ddp), own, sharded)[0]
    assert other == "error: launch.strategy=ddp, but accelerate launch says fsdp"
    assert refusal(resolved, launch(), own, {**sharded, "FSDP_VERSION": "1"})[0] == "error: accelerate launch says FSDP of version 1"
    zero = {**env, "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}
    assert (resolved(launch(), own, zero).strategy, resolved(launch(), own, zero).zero_stage) == (Strategy.deepspeed, 1)
    assert refusal(resolved, launch(), own, {**zero, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}) == [
        "error: accelerate launch says ACCELERATE_DEEPSPEED_ZERO_STAGE=3, which rlctl cannot do",
        "  why:  it can do: 1, 2",
        "  try:  another accelerate config, or rlctl train without accelerate launch",
    ]
    assert resolved(launch(), None, env).device is Device.auto  # a variable that is only lying around


# --- how many processes


def test_by_default_every_visible_gpu_and_else_the_cpu(monkeypatch):
    assert resolved(launch(device=Device.cpu)).processes == 1
    assert resolved(launch(), None, {"CUDA_VISIBLE_DEVICES": ""}).processes == 1
    monkeypatch.setattr(place, "visible_gpus", lambda device, env: 3)
    assert resolved(launch()).processes == 3
    assert resolved(launch(processes=2)).processes == 2
    assert refusal(resolved, launch(processes=4)) == [
        "error: launch.processes=4: this machine shows 3 GPUs",
        "  try:  launch.processes=3, or launch=cpu",
    ]


def test_gpus_are_looked_for_without_torch():
    code = "import os, sys; from rlctl import place; from rlctl.config.schema import Device\n"
    code += "place.visible_gpus(Device.cpu, os.environ), place.visible_gpus(Device.auto, {'CUDA_VISIBLE_DEVICES': ''})\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SPLITS = {
    (8, 3, 1): "rollout.prompts_per_step=8 cannot be shared evenly by launch.processes=3; nearest: rollout.prompts_per_step=6 or 9, "
    "or launch.processes=2 or 4",
    (2, 4, 1): "rollout.prompts_per_step=2 cannot be shared evenly by launch.processes=4; nearest: rollout.prompts_per_step=4, "
    "or launch.processes=2",
    (10, 2, 2): "rollout.prompts_per_step=10 cannot be shared evenly by launch.processes=2 on each of launch.machines=2; nearest: "
    "rollout.prompts_per_step=8 or 12, or launch.processes=1 or 5",
    (5, 1, 2): "rollout.prompts_per_step=5 cannot be shared evenly by launch.processes=1 on each of launch.machines=2; nearest: "
    "rollout.prompts_per_step=4 or 6",
}


@pytest.mark.parametrize(("prompts", "processes", "machines"), SPLITS)
def test_a_bad_split_names_the_nearest_that_work(prompts, processes, machines):
    config = replace(launch(processes=processes, machines=machines), rollout=RolloutConfig(prompts_per_step=prompts))
    assert checks.problems(config) == [SPLITS[prompts, processes, machines]]


@pytest.mark.parametrize(("prompts", "processes", "machines"), [(8, 4, 2), (8, 8, 1), (8, None, 1), (7, 1, 1)])
def test_a_good_split_is_no_problem(prompts, processes, machines):
    config = replace(launch(processes=processes, machines=machines), rollout=RolloutConfig(prompts_per_step=prompts))
    assert checks.problems(config) == []


# --- machines


def test_a_machine_finds_its_place_by_keys_or_from_slurm():
    asked = {"device": Device.cpu, "machines": 2}
    got = resolved(launch(**asked, machine_rank=1, main_address="h"))
    assert (got.machine_rank, got.main_address, got.main_port) == (1, "h", 29500)
    slurm = {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[03-05,9],login"}
    got = resolved(launch(**asked), None, slurm)
    assert (got.machine_rank, got.main_address) == (1, "gpu03")
    assert resolved(launch(device=Device.cpu), None, slurm).machine_rank == 0  # one machine is no part of several


def test_a_machine_without_a_place_is_refused():
    assert refusal(resolved, launch(machines=2, device=Device.cpu)) == [
        "error: launch.machines=2 needs launch.main_address, the address of machine 0",
        "  try:  launch.main_address=HOST on every machine",
    ]
    assert refusal(resolved, launch(machines=2, machine_rank=2, main_address="h")) == [
        "error: launch.machine_rank=2 is not one of launch.machines=2",
        "  try:  0 to 1",
    ]


def test_another_machine_is_known_before_anything_is_composed():
    assert place.is_other_machine(["launch.machines=2", "launch.machine_rank=1"], {})
    assert not place.is_other_machine(["launch.machines=2", "launch.machine_rank=0"], {"SLURM_NODEID": "1"})
    assert place.is_other_machine(["launch.machines=2"], {"SLURM_NODEID": "1"})
    assert not place.is_other_machine([], {"SLURM_NODEID": "1"})


@pytest.mark.parametrize(
    ("config", "sweep", "text"),
    [
        (launch(machines=2), True, "error: a sweep over several machines needs something that starts its members on them"),
        (replace(launch(), model=ModelConfig(dtype=Dtype.float16)), False, "error: model.dtype=float16 cannot be trained: small updates "
         "are lost in it, and its gradients cannot be unscaled"),
        (replace(launch(mixed_precision=MixedPrecision.fp16), model=ModelConfig(dtype=Dtype.bfloat16)), False,
         "error: launch.mixed_precision=fp16 needs model.dtype=float32"),
        (launch(mixed_precision=MixedPrecision.fp16, processes=2, strategy=Strategy.fsdp), False,
         "error: launch.mixed_precision=fp16 is for launch.strategy=ddp, not fsdp"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(config, sweep, text):
    assert refusal(place.check, config, sweep, {})[0] == text


def test_deepspeed_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(place, "find_spec", lambda name: None)
    assert refusal(place.check, launch(strategy=Strategy.deepspeed), False, {}) == [
        "error: launch.strategy=deepspeed: deepspeed is not installed",
        "  try:  pip install deepspeed, or launch=fsdp",
    ]


# --- an accelerate config file

FILE = {
    "compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": "MULTI_GPU", "downcast_bf16": "no",
    "enable_cpu_affinity": False, "gpu_ids": "all", "machine_rank": 1, "main_process_ip": "10.0.0.1", "main_process_port": 29501,
    "main_training_function": "main", "mixed_precision": "bf16", "num_machines": 2, "num_processes": 8, "rdzv_backend": "static",
    "same_network": True, "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False,
}  # fmt: skip


def write(path: Path, **entries) -> str:
    path.write_text(yaml.safe_dump({**FILE, **entries}, sort_keys=False))
    return str(path)


def test_a_file_of_accelerate_config_is_read_as_defaults(tmp_path):
    path = write(tmp_path / "a.yaml")
    got = resolved(launch(accelerate_config=path, device=Device.cpu))
    assert (got.processes, got.machines, got.machine_rank, got.main_address, got.main_port) == (4, 2, 1, "10.0.0.1", 29501)
    assert (got.mixed_precision, got.strategy) == (MixedPrecision.bf16, Strategy.ddp)
    own = resolved(launch(accelerate_config=path, device=Device.cpu, processes=2, machine_rank=0, main_port=1))
    assert (own.processes, own.machine_rank, own.main_port) == (2, 0, 1)


def test_a_file_can_ask_for_a_strategy(tmp_path):
    fsdp = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}
    assert accelerate_file.read(write(tmp_path / "f", distributed_type="FSDP", fsdp_config=fsdp))["strategy"] is Strategy.fsdp
    zero = {"zero_stage": 1, "gradient_accumulation_steps": 1, "offload_optimizer_device": "none"}
    got = accelerate_file.read(write(tmp_path / "d", distributed_type="DEEPSPEED", deepspeed_config=zero))
    assert (got["strategy"], got["zero_stage"]) == (Strategy.deepspeed, 1)
    assert accelerate_file.read(write(tmp_path / "c", distributed_type="MULTI_CPU", use_cpu=True))["device"] is Device.cpu
    assert accelerate_file.read(write(tmp_path / "n", mixed_precision=False))["mixed_precision"] is MixedPrecision.no  # a bare no


def test_what_rlctl_cannot_do_as_a_file_says_is_refused_with_every_entry(tmp_path):
    path = write(
        tmp_path / "a.yaml", distributed_type="FSDP", num_processes=7, gpu_ids="0,1", mixed_precision="fp8", wings=2,
        fsdp_config={"fsdp_version": 1, "fsdp_offload_params": True},
    )  # fmt: skip
    assert refusal(accelerate_file.read, path) == [
        f"error: the accelerate config {path} asks for what rlctl cannot do",
        "  why:  gpu_ids: 0,1: CUDA_VISIBLE_DEVICES chooses GPUs",
        "        wings: 2",
        "        fsdp_config.fsdp_version: 1: launch.strategy=fsdp is FSDP2",
        "        fsdp_config.fsdp_offload_params: True",
        "        num_processes: 7",
        "        mixed_precision: fp8",
        "  try:  take the entries out, or leave launch.accelerate_config out",
    ]


def test_a_file_that_is_not_there_or_no_yaml_is_refused(tmp_path):
    assert refusal(accelerate_file.read, str(tmp_path / "no"))[0] == f"error: no accelerate config at {tmp_path / 'no'}"
    (tmp_path / "bad").write_text("a: [")
    assert refusal(accelerate_file.read, str(tmp_path / "bad"))[0] == f"error: the accelerate config {tmp_path / 'bad'} cannot be read"


# --- precision


@pytest.mark.parametrize(
    ("native_bf16", "capability", "chosen"),
    [(True, (9, 0), MixedPrecision.bf16), (False, (7, 5), MixedPrecision.fp16), (False, (6, 1), MixedPrecision.no)],
)
def test_precision_is_chosen_by_the_gpu(monkeypatch, native_bf16, capability, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native_bf16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert devices.precision(MixedPrecision.auto, on_cpu=False) is chosen
    assert devices.precision(MixedPrecision.auto, on_cpu=True) is MixedPrecision.no
    assert devices.precision(MixedPrecision.no, on_cpu=False) is MixedPrecision.no


def test_fp16_on_a_cpu_is_refused():
    assert refusal(devices.precision, MixedPrecision.fp16, True) == [
        "error: launch.mixed_precision=fp16 needs a CUDA GPU",
        "  why:  on a CPU accelerate does not scale the loss, and small gradients would become 0",
        "  try:  launch.mixed_precision=bf16, or no",
    ]


@pytest.fixture
def fresh() -> Iterator[None]:
    """accelerate settles on one precision in a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> Environment:
    root = tmp_path_factory.mktemp("launch")
    sys.path.insert(0, str(root))
    return Environment(root)


def test_bf16_on_a_cpu_takes_finite_updates_from_float32_log_probabilities(env, tmp_path, fresh):
    config = env.config(tmp_path / "run", run={"steps": 2})
    run = assemble(replace(config, launch=replace(config.launch, mixed_precision=MixedPrecision.bf16)), Recording())
    for step in (1, 2):
        rollout = run.collector(run.prompts.at(step, 8), run.clock).rollout
        assert {t.dtype for t in (rollout.old_logprobs, rollout.ref_logprobs, rollout.values)} == {torch.float32}
        batch = run.algorithm.prepare(rollout, run.kl.coef, lambda x: x)[0]
        assert batch.advantages.dtype is torch.float32
        metrics = run.updater(batch, step)
        assert all(math.isfinite(v) for v in metrics.values())
    assert metrics["policy/updates"] == 2 and {p.dtype for p in run.collector.lm.parameters()} == {torch.float32}
    with run.accelerator.autocast():  # the autocast was on: the last layer's own output is bf16
        assert run.collector.lm(input_ids=torch.tensor([[1, 2]])).logits.dtype is torch.bfloat16


def scaled(env: Environment, folder: Path, scale: float):
    """A run with fp16's scaling, which accelerate sets up on GPUs alone."""
    run = assemble(env.config(folder), Recording())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10_000)
    optimizer = AcceleratedOptimizer(run.updater.optimizer.optimizer, device_placement=False, scaler=scaler)
    run.updater.learner.optimizer, run.accelerator._optimizers, run.accelerator.scaler = optimizer, [optimizer], scaler
    run.accelerator.native_amp = True
    return run, scaler


def overflow(run) -> None:
    """From now on a gradient of the policy does not fit."""
    real = run.updater.learner.clip

    def clip(modules, limit):
        next(p for p in modules["policy/grad_norm"].parameters() if p.grad is not None).grad.view(-1)[0] = torch.inf
        return real(modules, limit)

    run.updater.learner.clip = clip


@pytest.fixture
def as_fp16(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate scales, whatever it was set up with."""
    monkeypatch.setattr(Accelerator, "mixed_precision", "fp16")


def test_an_update_that_overflows_under_fp16_is_skipped_and_counted(env, tmp_path, as_fp16):
    run, scaler = scaled(env, tmp_path, 2.0**120)
    batch = batch_of(run)
    before = {k: v.clone() for k, v in run.collector.lm.state_dict().items()}
    overflow(run)
    metrics = run.updater(batch, 1)
    assert metrics["policy/skipped_updates"] == 1 and metrics["policy/updates"] == 0
    assert "policy/grad_norm" not in metrics and scaler.get_scale() == 2.0**119
    assert all(torch.equal(v, before[k]) for k, v in run.collector.lm.state_dict().items())
    del run.updater.learner.clip
    metrics = run.updater(batch, 2)
    assert metrics["policy/skipped_updates"] == 0 and metrics["policy/updates"] == 1 and math.isfinite(metrics["policy/grad_norm"])
    assert any(not torch.equal(v, before[k]) for k, v in run.collector.lm.state_dict().items())


def test_an_overflow_at_a_scale_of_one_is_an_error(env, tmp_path, as_fp16):
    run, _ = scaled(env, tmp_path, 1.0)
    batch = batch_of(run)
    overflow(run)
    with pytest.raises(TrainingError, match="step 1: policy/grad_norm is"):
        run.updater(batch, 1)


def test_scaling_changes_no_update(env, tmp_path, as_fp16):
    plain = assemble(env.config(tmp_path / "a"), Recording())
    scaled_run, _ = scaled(env, tmp_path / "b", 2.0**10)
    batch = batch_of(plain)
    norms = [run.updater(batch, 1)["policy/grad_norm"] for run in (plain, scaled_run)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


# --- real processes


def same(one: Path, other: Path) -> None:
    """Metrics and final weights of two runs, at 1e-4."""
    for a, b in zip(lines(one), lines(other), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4)
    x, y = (load_file(run / "policy" / "model.safetensors") for run in (one, other))
    assert x.keys() == y.keys()
    for name, tensor in x.items():
        torch.testing.assert_close(tensor, y[name], atol=1e-4, rtol=1e-4)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def command(folder: Path, out: str, *overrides: str) -> list[str]:
    (folder / "fixed.py").write_text(tools.MODULE)
    return ["-m", "rlctl", "train", *TINY, "reward=fn:fixed.score", f"hydra.run.dir={out}", *overrides]


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Path:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("one")
    done = train(folder, "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def finished(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each."""
    try:
        spoken = [p.communicate(timeout=240) for p in processes]
    finally:
        for p in processes:
            if p.poll() is None:  # its own processes end with it
                p.terminate()
                p.wait(60)
    return [(p.returncode, *words) for p, words in zip(processes, spoken, strict=True)]


def start(argv: list[str], cwd: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *argv], cwd=cwd, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def test_torchrun_is_one_run_and_equals_one_process(tmp_path, one):
    argv = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *command(tmp_path, "run")]
    ((status, out, err),) = finished([start(argv, tmp_path)])
    assert status == 0, err
    assert out.count("step 1/2") == 1 and "2 x cpu" in out
    assert [p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "__pycache__"] == ["run"]
    assert compose.load(tmp_path / "run" / "config.yaml").launch.processes == 2
    same(one, tmp_path / "run")


def ranks(folder: Path, *argv: str) -> list[tuple[int, str, str]]:
    """Two processes as any launcher starts them, by variables alone."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return finished([start(list(argv), folder, RANK=r, LOCAL_RANK=r, **shared) for r in "01"])


def test_what_the_first_process_refuses_ends_all_with_its_status_and_one_message(tmp_path):
    (first, second) = ranks(tmp_path, *command(tmp_path, "run", "rollout.prompts_per_step=9", "algo.minibatches=1"))
    assert (first[0], second) == (2, (2, "", "")), first[2]
    assert first[2].count("error:") == 1 and "launch.processes=2; nearest: rollout.prompts_per_step=8 or 10" in first[2]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    assert not list(tmp_path.glob("run/rlctl-*.log")) and len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_flags_and_sweeps_under_a_launcher(tmp_path):
    first, second = ranks(tmp_path, "-m", "rlctl", "train", "--cfg", "job", "launch=cpu")
    assert (first[0], second) == (0, (0, "", "")) and first[1].startswith("seed: 0\n")
    first, second = ranks(tmp_path, "-m", "rlctl", "train", "-m", "seed=0,1", "launch=cpu")
    assert (first[0], second) == (2, (2, "", ""))
    assert first[2].splitlines() == [
        "error: a sweep starts its own processes",
        "  why:  a launcher (WORLD_SIZE is set) started this one as one of 2",
        "  try:  rlctl train -m seed=0,1 launch=cpu",
    ]


@pytest.mark.slow
def test_accelerate_launch_with_a_config_file(tmp_path, one):
    path = write(
        tmp_path / "a.yaml", num_machines=1, num_processes=2, machine_rank=0, mixed_precision="no", main_process_port=free_port(),
        main_process_ip=None,
    )  # fmt: skip
    argv = ["-m", "accelerate.commands.launch", "--config_file", path, *command(tmp_path, "run")]
    ((status, out, err),) = finished([start(argv, tmp_path)])
    assert status == 0, err
    assert out.count("step 1/2") == 1 and "2 x cpu" in out
    same(one, tmp_path / "run")


def test_two_machines_are_one_run(tmp_path, one):
    """Two launchers on the loopback addresses of one host, in folders of their own: nothing is shared but the network."""
    folders = [tmp_path / "first", tmp_path / "second"]
    keys = ["launch.machines=2", "launch.processes=1", "launch.main_address=127.0.0.1", f"launch.main_port={free_port()}", "launch.wait=60"]
    processes = []
    for rank, folder in enumerate(folders):
        folder.mkdir()
        argv = command(folder, "run", *keys, f"launch.machine_rank={rank}")
        # the command's folder is named alike everywhere; only the first machine has one
        processes.append(start(argv if rank == 0 else [a for a in argv if not a.startswith("hydra.run.dir")], folder))
    (first, second) = finished(processes)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert first[1].count("step 1/2") == 1 and "2 x cpu" in first[1] and second[1] == ""
    assert [p.name for p in folders[1].iterdir() if p.is_dir() and p.name != "__pycache__"] == []  # no folder of its own
    assert len(list(folders[1].glob("pid-*"))) == 1  # it did its share
    same(one, folders[0] / "run")


def test_a_machine_that_waits_in_vain_says_so(tmp_path):
    port = free_port()
    keys = ["launch.machines=2", "launch.main_address=127.0.0.1", f"launch.main_port={port}", "launch.wait=1", "launch.machine_rank=1"]
    ((status, out, err),) = finished([start(command(tmp_path, "run", *keys, "launch.processes=1"), tmp_path)])
    assert (status, out) == (2, "")
    said = err.splitlines()
    assert said[0] == f"error: machine 1 of 2 did not meet the others at 127.0.0.1:{port} within 1 s"
    assert len(said) == 3 and said[2] == (
        "  try:  the same command on every machine, each with its own launch.machine_rank; is the port free and open?"
    )
    assert not (tmp_path / "run").exists()


def test_fsdp_equals_one_process_and_writes_plain_models(tmp_path, one):
    done = train(tmp_path, "run", "launch.processes=2", "launch.strategy=fsdp", "run.save_value=true", "run.save_every=2")
    assert done.returncode == 0, done.stderr
    assert "2 x cpu, mixed precision no, fsdp" in done.stdout
    same(one, tmp_path / "run")
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step_000002"):
        for name, cls in (("policy", AutoModelForCausalLM), ("value", AutoModelForSequenceClassification)):
            model, info = cls.from_pretrained(folder / name, output_loading_info=True)
            assert not info["missing_keys"] and not info["unexpected_keys"] and {p.dtype for p in model.parameters()} == {torch.float32}
            assert model.config.architectures == [type(model).__name__]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_several_processes_go_on_bit_for_bit(tmp_path, strategy):
    keys = ["launch.processes=2", f"launch.strategy={strategy}", "run.steps=3", "run.save_every=1", "run.keep=3"]
    done = train(tmp_path, "whole", *keys)
    assert done.returncode == 0, done.stderr
    done = train(tmp_path, "run", *keys)
    assert done.returncode == 0, done.stderr
    for path in [*(tmp_path / "run" / "checkpoints").glob("step_00000[23]"), tmp_path / "run" / "policy"]:
        path.rename(tmp_path / f"gone-{path.name}")
    (tmp_path / "run" / "summary.json").unlink()
    argv = [sys.executable, "-m", "rlctl", "resume", "run"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "goes on after step 1" in done.stdout
    one, two = ((tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("whole", "run"))
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_processes_whose_responses_end_at_unlike_times_do_not_wait_for_each_other(tmp_path, strategy):
    """Really sampled, in bf16: 11 of 22 prompts each, and more than one pass over 23 rows."""
    keys = ["reward=fn", "rollout.prompts_per_step=22", "algo.minibatches=1", "rollout.max_new_tokens=24", "data.limit=23"]
    done = train(tmp_path, "run", *keys, "launch.processes=2", f"launch.strategy={strategy}", "launch.mixed_precision=bf16")
    assert done.returncode == 0, done.stderr
    last = lines(tmp_path / "run")[-1]
    assert last["policy/updates"] == 8 and math.isfinite(last["loss/policy"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples" / "step_000001.jsonl").open()]
    assert len(rows) == 22 and last["progress/samples"] == 44


def test_an_adapter_is_refused_where_the_models_are_sharded(env, tmp_path):
    config = env.config(tmp_path)
    run = assemble(replace(config, model=replace(config.model, lora=LoraConfig(r=2))), Recording())
    several = replace(run.config, launch=replace(run.config.launch, strategy=Strategy.fsdp))
    fake = type("Two", (), {"num_processes": 2})()
    assert refusal(distribute, several, fake, run.collector.policy, None, None, lambda p, v: None) == [
        "error: launch.strategy=fsdp cannot be used with a LoRA adapter",
        "  why:  policy, reference and value model share the frozen weights of one base, and would each get a copy",
        "  try:  launch.strategy=ddp",
    ]


def test_another_strategy_makes_it_another_run(env, tmp_path):
    config = env.config(tmp_path)
    other = replace(config, launch=replace(config.launch, strategy=Strategy.fsdp))
    assert [c.key for c in changes(config, other)] == ["launch.strategy"] and "launch.strategy" in FIXED
