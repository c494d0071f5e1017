"""The CPU plan, for any machine: exact where CPUs suffice, refused with the numbers or shared where they do not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machines import flat
from tfagents_system.errors import UserError
from tfagents_system.launch.cpus import CpuPlan, plan_for, split_cpus
from tfagents_system.machine import processes
from tfagents_system.machine.cpus import (
    Cpu,
    Usable,
    cgroup_quota,
    described,
    format_cpu_list,
    parse_cpu_list,
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


def plan(
    reverb: int, train: int, workers: int, worker: int, usable: Usable | list[int], held: Any = None, **more: Any
) -> CpuPlan:
    counts = {"reverb_cpus": reverb, "train_cpus": train, "num_collect_workers": workers, "collect_worker_cpus": worker}
    return plan_for({**counts, **more}, held=held, usable=flat(usable) if isinstance(usable, list) else usable)


def test_lists_are_written_as_the_kernel_does() -> None:
    assert format_cpu_list([8, 0, 1, 2, 3, 10]) == "0-3,8,10"
    assert parse_cpu_list("0-3,8,10\n") == [0, 1, 2, 3, 8, 10]


@given(cpu_ids, sizes, st.booleans())
def test_every_machine_has_a_valid_plan_or_a_refusal(allowed: list[int], size: dict[str, Any], share: bool) -> None:
    needed = size["reverb_cpus"] + size["train_cpus"] + size["num_collect_workers"] * size["collect_worker_cpus"]
    if needed > len(allowed) and not share:
        with pytest.raises(UserError, match=f"needs {needed} CPUs, {len(allowed)} are available"):
            plan_for(size, usable=flat(allowed))
        return
    result = plan_for({**size, "share_cpus": share}, usable=flat(allowed))
    by_role = result.by_role
    assert len(by_role) == 2 + size["num_collect_workers"]
    assert set(result.ids()) <= set(allowed)
    assert all(ids and len(set(ids)) == len(ids) for ids in by_role.values())
    if needed <= len(allowed):
        used = [cpu for ids in by_role.values() for cpu in ids]
        assert len(used) == len(set(used)) == needed
        assert result.shared_cpus is None
        assert len(by_role["replay"]) == size["reverb_cpus"] and len(result.trainer) == size["train_cpus"]
        assert {len(ids) for ids in result.workers} == {size["collect_worker_cpus"]}
    elif len(allowed) > 1:
        others = set(by_role["replay"]).union(*result.workers)
        assert result.shared_cpus is not None
        assert len(result.trainer) == min(size["train_cpus"], len(allowed))
        assert size["train_cpus"] >= len(allowed) or not others & set(result.trainer)


@pytest.mark.parametrize(
    ("sizes", "allowed", "expected"),
    [
        ((1, 1, 2, 1), [0, 1], {"replay": [0], "trainer": [1], "worker_0": [0], "worker_1": [0]}),
        ((1, 2, 2, 1), [0, 1], {"replay": [0], "trainer": [0, 1], "worker_0": [1], "worker_1": [0]}),
        (
            (1, 2, 4, 1),
            [3, 5, 7, 9],
            {"replay": [3], "trainer": [5, 7], "worker_0": [9], "worker_1": [3], "worker_2": [9], "worker_3": [3]},
        ),
    ],
    ids=["four roles on two", "a trainer that wants all", "round the CPUs beside the trainer's"],
)
def test_too_few_cpus_are_shared(
    sizes: tuple[int, int, int, int], allowed: list[int], expected: dict[str, list[int]]
) -> None:
    result = plan(*sizes, usable=allowed, share_cpus=True)
    assert result.to_json() == expected and result.shared_cpus == len(allowed)
    assert f"CPUs are wanted, {len(allowed)} are used" in result.notes[0]


def test_the_refusal_says_rule_value_and_remedy() -> None:
    with pytest.raises(UserError) as raised:
        plan(1, 8, 4, 1, [0, 1, 2, 3])
    assert raised.value.findings == (
        "SAC_REVERB_CPUS=1 + SAC_TRAIN_CPUS=8 + SAC_NUM_COLLECT_WORKERS=4 * SAC_COLLECT_WORKER_CPUS=1 needs 13 CPUs, "
        "4 are available (CPU ids 0-3): lower SAC_TRAIN_CPUS or set SAC_SHARE_CPUS=1",
    )


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        ((1, 1, 3, 1), "lower SAC_NUM_COLLECT_WORKERS or set SAC_SHARE_CPUS=1"),
        ((1, 1, 1, 4), "lower SAC_COLLECT_WORKER_CPUS or set SAC_SHARE_CPUS=1"),
        ((1, 1, 1, 1), "set SAC_SHARE_CPUS=1"),
    ],
)
def test_the_largest_share_is_to_be_lowered(sizes: tuple[int, int, int, int], remedy: str) -> None:
    with pytest.raises(UserError, match=f": {remedy}$"):
        plan(*sizes, [0, 1])


def test_experts_have_cpus_like_the_workers_before_them() -> None:
    assert plan(1, 2, 1, 2, list(range(9)), expert_workers=2).to_json() == plan(1, 2, 3, 2, list(range(9))).to_json()
    told = r"\(SAC_NUM_COLLECT_WORKERS=1 \+ SAC_EXPERT_WORKERS=2\) \* SAC_COLLECT_WORKER_CPUS=2 needs 9 CPUs, 8 are"
    with pytest.raises(UserError, match=told):
        plan(1, 2, 1, 2, list(range(8)), expert_workers=2)
    told = r"SAC_EXPERT_WORKERS=1 \+ SAC_EVAL_WORKERS=1\) \* SAC_COLLECT_WORKER_CPUS=2 needs 9"
    with pytest.raises(UserError, match=told):
        plan(1, 2, 1, 2, list(range(8)), expert_workers=1, eval_workers=1)
    assert plan(1, 2, 1, 2, list(range(9)), expert_workers=1, eval_workers=1).evaluators == 1


def test_the_cgroups_quota_counts_and_every_container_with_one_would_take_the_same_ids() -> None:
    assert plan(1, 1, 2, 1, flat(range(4), quota=4.0)).ids() == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"needs 4 CPUs, 2 are available \(the cgroup's quota of 2.5 CPUs\)"):
        plan(1, 1, 2, 1, flat(range(64), quota=2.5))
    result = plan(1, 1, 2, 1, flat(range(64), quota=2.5), share_cpus=True, held={0: "run a"})
    assert not result.pinned and result.ids() == [] and result.shared_cpus == 2 and len(result.workers) == 2
    assert set(result.counts.values()) == {1}
    assert result.notes[0].startswith(
        "the cgroup's quota is the time of 2.5 CPUs, on any of the ids 0-63: roles are not"
    )
    assert "CPU plan (not pinned, shared):" in result.table()


def test_an_allotment_is_pinned_where_the_cluster_confines_the_job_to_it() -> None:
    result = plan(1, 1, 2, 1, flat([4, 5, 20, 21], allotment=4))
    assert result.pinned and result.ids() == [4, 5, 20, 21]
    result = plan(1, 4, 3, 1, flat(range(64), allotment=8))
    assert not result.pinned and result.ids() == []
    assert len(result.workers) == 3 and result.counts["trainer"] == 4
    assert "SLURM allotted 8 CPUs but does not confine" in result.notes[0]
    with pytest.raises(UserError, match=r"needs 9 CPUs, 8 are available \(SLURM's allotment on this node\)"):
        plan(1, 4, 4, 1, flat(range(64), allotment=8))


def test_cpus_that_others_hold_are_left_alone() -> None:
    held = {0: "run a", 1: "run a", 5: "run b"}
    assert plan(1, 1, 1, 1, list(range(8)), held=held).ids() == [2, 3, 4]
    with pytest.raises(UserError, match="needs 6 CPUs, 5 of 8 are free .0-1 held by run a, 5 held by run b."):
        plan(1, 1, 4, 1, list(range(8)), held=held)
    shared = plan(1, 1, 4, 1, list(range(8)), held=held, share_cpus=True)
    assert shared.ids() == [2, 3, 4, 6, 7]  # free ones are enough to share
    all_held = plan(1, 1, 2, 1, [0, 1], held={0: "run a", 1: "run a"}, share_cpus=True)
    assert not all_held.pinned and all_held.ids() == [], "the kernel divides them"
    assert all_held.notes == ("CPUs are shared with another run (0-1 held by run a): roles are not pinned",)


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


@pytest.fixture
def membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path)
    return tmp_path / "cgroup"


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    assert cgroup_quota() is None
    (tmp_path / "a/cpu.max").write_text("250000 100000\n")
    (tmp_path / "cpu.max").write_text("800000 100000\n")
    assert cgroup_quota() == 2.5


def test_version_1_quotas_and_a_path_that_only_the_host_has(tmp_path: Path, membership: Path) -> None:
    membership.write_text("5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu,cpuacct/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu,cpuacct/cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota() == 1.5
    (tmp_path / "cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_quota() is None


# Machines as the kernel describes them.


def describe(folder: Path, cores: Sequence[Sequence[int]], nodes: Sequence[str]) -> Path:
    """What the kernel says of a machine with these threads by core, and these lists of CPUs by node."""
    for threads in cores:
        for cpu in threads:
            topology = folder / f"cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(format_cpu_list(threads) + "\n")
    for number, cpus in enumerate(nodes):
        (folder / f"node/node{number}").mkdir(parents=True)
        (folder / f"node/node{number}/cpulist").write_text(cpus + "\n")
    return folder


def two_sockets(folder: Path) -> Path:
    """Two nodes of four cores; CPU k and k + 8 are threads of one core."""
    return describe(folder, [(k, k + 8) for k in range(8)], ["0-3,8-11", "4-7,12-15"])


def neighbours(folder: Path) -> Path:
    """One node of four cores; CPU 2k and 2k + 1 are threads of one core."""
    return describe(folder, [(2 * k, 2 * k + 1) for k in range(4)], ["0-7"])


def test_cores_and_nodes_are_as_the_kernel_describes_them(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert described([4, 0, 9], tmp_path) == {
        0: Cpu(0, frozenset([0, 8])), 4: Cpu(1, frozenset([4, 12])), 9: Cpu(0, frozenset([1, 9])),
    }  # fmt: skip
    assert described([99], tmp_path) == described([99], tmp_path / "nowhere") == {99: Cpu(0, frozenset([99]))}


def plan_on(machine: Path, allowed: Sequence[int], reverb: int, train: int, workers: int, **more: Any) -> CpuPlan:
    return plan(reverb, train, workers, 1, Usable(described(allowed, machine)), **more)


def test_roles_share_cores_only_where_there_are_no_others_and_the_trainers_last(tmp_path: Path) -> None:
    machine = neighbours(tmp_path)
    first = {"replay": [0], "trainer": [2], "worker_0": [4], "worker_1": [6]}
    assert plan_on(machine, range(8), 1, 1, 2).to_json() == first
    more = {"worker_2": [1], "worker_3": [5], "worker_4": [7]}
    assert plan_on(machine, range(8), 1, 1, 5).to_json() == first | more


def test_trainer_and_replay_server_are_on_the_node_that_has_room_for_the_run(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    assert plan_on(machine, range(16), 1, 2, 1).ids() == [0, 1, 2, 3]
    # Two cores of the first node are another run's.
    held = dict.fromkeys((0, 1), "run a")
    assert plan_on(machine, range(16), 1, 2, 1, held=held).to_json() == {
        "replay": [4],
        "trainer": [5, 6],
        "worker_0": [7],
    }
    assert plan_on(machine, range(16), 1, 2, 4).to_json() == {
        "replay": [0], "trainer": [1, 2], "worker_0": [3], "worker_1": [4], "worker_2": [5], "worker_3": [6],
    }  # fmt: skip


# Sweeps: which run has which CPUs.


def split(machine: Path, allowed: Sequence[int], parallel: int, needed: int, **more: Any) -> list[list[int]]:
    return [*map(list, split_cpus(described(allowed, machine), parallel, needed, **more))]


def test_runs_get_stretches_of_cores_and_nodes(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    everything, nodes = range(16), ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
    assert split(machine, everything, 1, 4) == [list(everything)]
    assert split(machine, everything, 2, 4) == list(nodes)
    assert split(machine, everything, 4, 4) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert split(machine, everything, 3, 4, held=[0, 9]) == [[1, 2, 3, 8, 10], [4, 5, 11, 12, 13], [6, 7, 14, 15]]
    assert split(machine, everything, 3, 9, share=True) == [
        [0, 1, 2, 8, 9, 10],
        [3, 4, 5, 11, 12],
        [6, 7, 13, 14, 15],
    ]
    assert split(machine, range(2), 2, 4, held=[0, 1], share=True) == [[0], [1]]
    assert split(machine, range(2), 5, 1, share=True) == [[0], [1], [0], [1], [0]]
