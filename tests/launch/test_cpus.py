"""The CPU plan, for any machine: exact where CPUs suffice, refused with the numbers or shared where they do not."""

import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfagents_system.errors import UserError
from tfagents_system.launch.cpus import (
    CpuPlan,
    cgroup_quota,
    format_cpu_list,
    parse_cpu_list,
    physical_cores,
    plan_cpus,
    plan_for,
    slurm_allotment,
)

cpu_ids = st.sets(st.integers(0, 1023), min_size=1, max_size=256).map(sorted)
sizes = st.fixed_dictionaries(
    {
        "reverb_cpus": st.integers(1, 8),
        "train_cpus": st.integers(1, 32),
        "num_collect_workers": st.integers(1, 64),
        "collect_worker_cpus": st.integers(1, 8),
    }
)


def plan(reverb: int, train: int, workers: int, worker: int, allowed: list[int], **more: Any) -> CpuPlan:
    return plan_cpus(
        reverb_cpus=reverb, train_cpus=train, num_collect_workers=workers, collect_worker_cpus=worker,
        allowed=allowed, **more,
    )  # fmt: skip


@given(cpu_ids)
def test_lists_of_cpus_survive_writing_and_reading(ids: list[int]) -> None:
    assert parse_cpu_list(format_cpu_list(ids)) == ids


def test_lists_are_written_as_the_kernel_does() -> None:
    assert format_cpu_list([8, 0, 1, 2, 3, 10]) == "0-3,8,10"
    assert parse_cpu_list("0-3,8,10\n") == [0, 1, 2, 3, 8, 10]


@given(cpu_ids, sizes, st.booleans())
def test_every_machine_has_a_valid_plan_or_a_refusal(allowed: list[int], size: dict[str, Any], share: bool) -> None:
    needed = size["reverb_cpus"] + size["train_cpus"] + size["num_collect_workers"] * size["collect_worker_cpus"]
    if needed > len(allowed) and not share:
        with pytest.raises(UserError, match=f"needs {needed} CPUs, {len(allowed)} are available"):
            plan_cpus(allowed=allowed, **size)
        return
    result = plan_cpus(allowed=allowed, share=share, **size)
    by_role = result.by_role()
    assert len(by_role) == 2 + size["num_collect_workers"]
    assert set(result.ids()) <= set(allowed)
    assert all(ids and len(set(ids)) == len(ids) for ids in by_role.values())
    if needed <= len(allowed):
        used = [cpu for ids in by_role.values() for cpu in ids]
        assert len(used) == len(set(used)) == needed
        assert not result.shared
        assert len(result.replay) == size["reverb_cpus"] and len(result.trainer) == size["train_cpus"]
        assert {len(ids) for ids in result.workers} == {size["collect_worker_cpus"]}
    elif len(allowed) > 1:
        others = set(result.replay).union(*result.workers)
        assert result.shared
        assert len(result.trainer) == min(size["train_cpus"], len(allowed))
        assert size["train_cpus"] >= len(allowed) or not others & set(result.trainer)


def test_two_cpus_shared_by_four_roles() -> None:
    result = plan(1, 1, 2, 1, [0, 1], share=True)
    assert result.to_json() == {"replay": [0], "trainer": [1], "worker_0": [0], "worker_1": [0]}
    assert result.shared and "4 CPUs are wanted, 2 are used" in result.notes[0]


def test_a_trainer_that_wants_all_cpus_shares_them_with_the_others() -> None:
    result = plan(1, 2, 2, 1, [0, 1], share=True)
    assert result.to_json() == {"replay": [0], "trainer": [0, 1], "worker_0": [1], "worker_1": [0]}
    assert result.thread_environ("trainer")["TF_NUM_INTEROP_THREADS"] == "2"


def test_sharing_goes_round_the_cpus_beside_the_trainers() -> None:
    result = plan(1, 2, 4, 1, [3, 5, 7, 9], share=True)
    assert result.to_json() == {
        "replay": [3], "trainer": [5, 7], "worker_0": [9], "worker_1": [3], "worker_2": [9], "worker_3": [3],
    }  # fmt: skip


def test_one_cpu_for_all() -> None:
    assert plan(1, 4, 2, 1, [6], share=True).ids() == [6]


def test_the_refusal_says_rule_value_and_remedy() -> None:
    with pytest.raises(UserError) as raised:
        plan(1, 8, 4, 1, [0, 1, 2, 3])
    assert raised.value.findings == (
        "SAC_REVERB_CPUS=1 + SAC_TRAIN_CPUS=8 + SAC_NUM_COLLECT_WORKERS=4 * SAC_COLLECT_WORKER_CPUS=1 needs 13 CPUs, "
        "4 are available (CPU ids 0-3): lower SAC_NUM_COLLECT_WORKERS or set SAC_SHARE_CPUS=1",
    )


def test_the_cgroups_quota_counts() -> None:
    with pytest.raises(UserError, match=r"needs 4 CPUs, 2 are available \(the cgroup's quota of 2.5 CPUs\)"):
        plan(1, 1, 2, 1, list(range(64)), quota=2.5)
    assert len(plan(1, 1, 2, 1, list(range(64)), quota=2.5, share=True).ids()) == 2
    assert plan(1, 1, 2, 1, list(range(64)), quota=4.0).ids() == [0, 1, 2, 3]


def test_an_allotment_that_the_cluster_does_not_confine_is_not_pinned() -> None:
    result = plan(1, 4, 3, 1, list(range(64)), allotment=8)
    assert not result.pinned and result.ids() == []
    assert len(result.workers) == 3 and result.counts["trainer"] == 4
    assert "SLURM allotted 8 CPUs but does not confine" in result.notes[0]
    with pytest.raises(UserError, match=r"needs 9 CPUs, 8 are available \(SLURM's allotment on this node\)"):
        plan(1, 4, 4, 1, list(range(64)), allotment=8)


def test_a_confined_allotment_is_pinned() -> None:
    result = plan(1, 1, 2, 1, [4, 5, 20, 21], allotment=4)
    assert result.pinned and result.ids() == [4, 5, 20, 21]


def test_cpus_that_others_hold_are_left_alone() -> None:
    held = {0: "run a", 1: "run a", 5: "run b"}
    assert plan(1, 1, 1, 1, list(range(8)), held=held).ids() == [2, 3, 4]
    with pytest.raises(UserError, match="needs 6 CPUs, 5 of 8 are free .0-1 held by run a, 5 held by run b."):
        plan(1, 1, 4, 1, list(range(8)), held=held)
    shared = plan(1, 1, 4, 1, list(range(8)), held=held, share=True)
    assert shared.ids() == [2, 3, 4, 6, 7]  # free ones are enough to share
    all_held = plan(1, 1, 2, 1, [0, 1], held={0: "run a", 1: "run a"}, share=True)
    assert all_held.ids() == [0, 1] and "another run" in all_held.notes[0]


def test_trainers_of_runs_that_share_cpus_have_different_ones() -> None:
    held = dict.fromkeys(range(4), "run a")
    second = plan(1, 1, 2, 1, [0, 1], held=held, share=True, trainers=[1])
    assert (second.trainer, second.replay, second.workers) == ((0,), (1,), ((1,), (1,)))
    third = plan(1, 1, 2, 1, [0, 1], held=held, share=True, trainers=[0, 1])
    assert (third.trainer, third.replay) == ((1,), (0,)), "there is none without"
    larger = plan(1, 2, 4, 1, [0, 1, 2, 3], held=held, share=True, trainers=[1, 2])
    assert (larger.trainer, larger.replay) == ((0, 3), (1,))
    assert plan(1, 1, 1, 1, [0, 1, 2, 3], held=held, share=True, trainers=[1]).trainer == (2,)
    assert plan(1, 1, 1, 1, [0, 1, 2, 3, 4, 5, 6], held=held, trainers=[1]).trainer == (5,), "held ones are no choice"


def test_threads_follow_from_the_plan() -> None:
    result = plan(1, 4, 1, 2, list(range(8)))
    assert result.thread_environ("trainer") == {
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "2",
    }
    assert result.thread_environ("worker_0")["OMP_NUM_THREADS"] == "2"
    assert set(result.thread_environ("replay").values()) == {"1"}


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, None),
        ({"SLURM_CPUS_ON_NODE": "8"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}, 8),
    ],
)
def test_slurm_allotment(environ: dict[str, str], count: int | None) -> None:
    assert slurm_allotment(environ) == count


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    assert cgroup_quota(membership, tmp_path) is None
    (tmp_path / "a/cpu.max").write_text("250000 100000\n")
    (tmp_path / "cpu.max").write_text("800000 100000\n")
    assert cgroup_quota(membership, tmp_path) == 2.5


def test_version_1_quotas_and_a_path_that_only_the_host_has(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu,cpuacct/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu,cpuacct/cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(membership, tmp_path) == 1.5
    (tmp_path / "cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_quota(membership, tmp_path) is None


def hyperthreads(folder: Path, cores: int) -> Path:
    """What the kernel says of a machine whose CPU k and k + `cores` are threads of one core."""
    for cpu in range(2 * cores):
        topology = folder / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % cores},{cpu % cores + cores}\n")
    return folder


def test_cores_are_told_by_their_threads(tmp_path: Path) -> None:
    sysfs = hyperthreads(tmp_path, 4)
    assert physical_cores([0, 1, 3, 4, 6], sysfs) == [(0, 4), (1,), (3,), (6,)]
    assert physical_cores([2, 99], sysfs) == [(2,), (99,)]  # Of the last one the kernel says nothing.


def plan_of_job(sysfs: Path, use_hyperthreads: bool, allowed: list[int], **more: Any) -> CpuPlan:
    variables = types.SimpleNamespace(
        reverb_cpus=1, train_cpus=2, num_collect_workers=1, collect_worker_cpus=1, share_cpus=False,
        use_hyperthreads=use_hyperthreads,
    )  # fmt: skip
    return plan_for(variables, {}, allowed=lambda: allowed, cores_of=lambda ids: physical_cores(ids, sysfs), **more)


def test_without_hyperthreads_a_role_has_whole_cores(tmp_path: Path) -> None:
    sysfs = hyperthreads(tmp_path, 4)
    plan = plan_of_job(sysfs, False, list(range(8)))
    assert (plan.replay, plan.trainer, plan.workers) == ((0, 4), (1, 2, 5, 6), ((3, 7),))
    assert plan.counts == {"replay": 1, "trainer": 2, "worker_0": 1}  # Threads of TensorFlow: one a core.
    assert plan_of_job(sysfs, True, list(range(8))).workers == ((3,),)
    with pytest.raises(UserError, match="needs 4 CPUs, 3 are available"):
        plan_of_job(sysfs, False, [0, 1, 2, 4, 5, 6])
    with pytest.raises(UserError, match="needs 4 CPUs, 3 of 4 are free"):
        plan_of_job(sysfs, False, list(range(8)), held={5: "another run"})


def test_a_gateway_has_the_replay_server_s_cpus_and_one_that_nobody_else_has() -> None:
    spare = plan(1, 2, 2, 1, [0, 1, 2, 3, 8, 9, 12])
    assert (spare.replay, spare.spare, spare.gateway) == ((0,), 12, (0, 12))
    assert 12 not in spare.ids(), "it is not held: another run may take it"
    exact = plan(2, 2, 2, 1, [0, 1, 2, 3, 8, 9])
    assert (exact.spare, exact.gateway) == (None, (0, 1))
    assert plan(1, 1, 1, 1, [0, 1, 2, 3], quota=3.0).spare is None, "the cgroup has no time for a fourth CPU"
    assert plan(1, 1, 1, 1, [0, 1, 2, 3, 4], held={4: "run a"}).gateway == (0, 3)
    unpinned = plan(1, 1, 1, 1, [0, 1, 2, 3], allotment=3)
    assert unpinned.gateway == ()
