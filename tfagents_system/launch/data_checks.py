"""Whether a run's data fit it: prior data, another run that it takes from, its own ring, and saved experts.

Modules that need TensorFlow are imported where they are used: the first of these checks come before it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tree

from tfagents_system.checks.findings import Findings
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.errors import UserError, shown
from tfagents_system.machine.claims import EVAL, EXPERT
from tfagents_system.run_files.run_directory import from_line
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.settings.variables import NETWORKS
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.experience.conversion import Conversion
    from tfagents_system.transport.layout import Layout

PRIOR, ANOTHER_RUN, EXPERTS = "prior data", "another run", "experts"


@contextlib.contextmanager
def told(findings: Findings, where: str, what: str, *, names_it: bool = True) -> Iterator[None]:
    """Turns an exception of the user's code into errors; `names_it`: those that explain themselves name `what`, too."""
    try:
        yield
    except UserError as error:
        findings.error(where, *(f"{what}: {finding}" if names_it else finding for finding in error.findings))
    except EnvironmentFault as fault:
        step = f"step {fault.step}" if fault.step else "its first reset"
        findings.error(where, f"{what} failed in {step}: {describe_error(fault.__cause__ or fault)}")
    except (Exception, SystemExit) as error:
        findings.error(where, f"{what} raised {describe_error(error)}: correct the hook of TrainParams")


# Prior data.


def prior_sources(prior_data: Any, folders: Sequence[Path]) -> list[str]:
    """The sources of `prior_data`: names of Minari data sets as they are, paths as absolute ones.

    Args:
      folders: Where relative paths are looked for, the first one first.

    Raises:
      UserError: One is not there.
    """
    from tfagents_system.experience import minari_sets

    sources, findings = list[str](), list[str]()
    for source in _texts(prior_data):
        if source.startswith(minari_sets.PREFIX):
            try:
                minari_sets.check_is_here(source)
                sources.append(source)
            except UserError as error:
                findings.append(f"TrainParams.prior_data: {error}")
            continue
        candidates = list(dict.fromkeys((folder / Path(source).expanduser()).absolute() for folder in folders))
        path = next((candidate for candidate in candidates if candidate.exists()), None)
        if path is not None:
            sources.append(str(path))
        else:
            findings.append(
                f"TrainParams.prior_data: {source} does not exist (looked for {' and '.join(map(str, candidates))}): "
                "give a run, a file, minari:NAME, or a path that is relative to the folder of SAC_PARAMS"
            )
    if findings:
        raise UserError(*findings)
    return sources


def make_prior_data(
    params: TrainParamsBase, specs: bytes, folder: Path, folders: Sequence[Path], findings: Findings
) -> Path | None:
    """Makes the ring of a run that begins, in a folder below `folder`; None if something is wrong.

    Args:
      specs: The content of the run's specs file.
      folders: As of `prior_sources`.
    """
    from tfagents_system.experience.prior_ring import build

    ring = folder / "prior_data"
    with findings.catching(PRIOR):
        sources = prior_sources(params.prior_data, folders)
        form = params.sample_form_ctor().sequence_length, params.frame_stack
        try:
            made = build(sources, ring, _conversion(params, specs), lambda note: findings.note(PRIOR, note), *form)
            findings.fact(PRIOR, made)
            return ring
        except OSError as error:
            raise UserError(f"the ring of prior_data can't be written to {folder} ({error.strerror})") from None
    return None


def _texts(prior_data: Any) -> list[str]:
    """`prior_data`, as it was given."""
    sources = [prior_data] if isinstance(prior_data, str | os.PathLike) else prior_data or ()
    return [str(source) for source in sources]


def _conversion(params: TrainParamsBase, specs: bytes) -> Conversion:
    from tfagents_system.experience.conversion import Conversion

    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        return Conversion.of(params, Path(file.name))


# Another run (SAC_FROM).


def check_taken(taken: Taken, params: TrainParamsBase, outcome: Any, specs: bytes, findings: Findings) -> None:
    """Compares agent, actions and experience of the other run with this one's.

    Args:
      outcome: Of the trial. Its agent, which stays as it is, is None where it could not be built.
      specs: The content of the run's specs file.
    """
    if taken.agent is not None and outcome.agent is not None:
        with findings.catching(ANOTHER_RUN):
            _compare_agent(taken, outcome.agent, findings)
    with findings.catching(ANOTHER_RUN):
        _compare_actions(taken, outcome.specs, findings)
    if taken.has_rows:
        with findings.catching(ANOTHER_RUN):
            _compare_rows(taken, params, specs, findings)
    for name, had in (("num_iter", taken.iteration), ("num_env_steps", taken.env_steps)):
        wanted = getattr(params, name)
        if had and wanted is not None and had >= wanted:
            findings.error(
                ANOTHER_RUN,
                f"TrainParams.{name}={wanted} is for both runs together where SAC_TAKE=all, and the other one has had "
                f"{had}: raise it, or take the agent alone",
            )


def _compare_agent(taken: Taken, agent: Any, findings: Findings) -> None:
    from tfagents_system.agents.taken_weights import TakenWeights

    assert taken.agent is not None
    try:
        weights = TakenWeights(agent, taken.agent, networks_alone=taken.take == NETWORKS)
    except ValueError as error:
        raise UserError(f"SAC_FROM={taken.source}: {error}") from None
    if not weights.has_network:
        lines = "\n  ".join(weights.misfits)
        raise UserError(
            f"SAC_FROM={taken.source}: nothing of that agent fits this run's:\n  {lines}\nBuild the networks alike, or "
            "take experience alone (SAC_TAKE=replay)"
        )
    findings.fact(ANOTHER_RUN, f"{taken.source}: {weights.in_words}")
    for line in weights.misfits:
        findings.note(ANOTHER_RUN, f"SAC_FROM={taken.source}: begins anew, since it does not fit: {line}")


def _compare_actions(taken: Taken, run_specs: tuple[Any, Any, Any], findings: Findings) -> None:
    """Agents of the same layers may have learned other actions: rows of another table, or shares of other bounds."""
    from tfagents_system.envs.actions import actions_of, in_words
    from tfagents_system.envs.specs import load_actions
    from tfagents_system.experience.conversion import SPECS, mean_the_same

    file = Path(taken.run) / SPECS
    if not file.is_file():
        return
    ours, theirs = tree.flatten(actions_of(*run_specs[1:])), tree.flatten(load_actions(file))
    if len(ours) == len(theirs) and all(map(mean_the_same, ours, theirs)):
        return
    there, here = (", ".join(map(in_words, leaves)) for leaves in (theirs, ours))
    words = f"SAC_FROM={taken.source}: its actions are {there}, this run's {here}, or the same in another order"
    if taken.has_rows or any(leaf.rows is not None for leaf in (*ours, *theirs)):
        raise UserError(
            f"{words}: give the action space the same bounds, or action_table the same rows in the same order"
        )
    findings.note(ANOTHER_RUN, f"{words}: the agent begins with other actions than it has learned")


def _compare_rows(taken: Taken, params: TrainParamsBase, specs: bytes, findings: Findings) -> None:
    from tfagents_system.replay.ring_files import capacity_rows, longest_segment_rows
    from tfagents_system.replay.stored_ring import StoredRing, differences

    layout, stored = _conversion(params, specs).layout, StoredRing(Path(taken.run))
    if lines := differences(layout, stored.layout):
        raise UserError(
            f"SAC_FROM={taken.source} holds other experience than this run collects: {'; '.join(lines)}. Give a run of "
            "the same environment and settings (action_history, normalize_rewards, potential), or take the agent alone"
        )
    most, longest = capacity_rows(params, layout), longest_segment_rows(params, layout)
    if (needed := stored.longest_segment_rows(most)) > longest:
        raise UserError(
            f"SAC_FROM={taken.source} has segments of {needed:,} rows, and the replay buffer takes {longest:,} at "
            "most: raise buffer_size"
        )
    findings.fact(ANOTHER_RUN, f"{taken.run}: {stored.steps:,} steps")
    if stored.rows > most:
        findings.note(
            ANOTHER_RUN,
            f"SAC_FROM takes {stored.rows:,} rows, and the replay buffer has {most:,}: the last ones are kept. Raise "
            "buffer_size to keep all",
        )


def ring_findings(params: TrainParamsBase, layout: Layout, folder: Path, run: RunPaths) -> list[str]:
    """How the experience of a run that goes on differs from what its ring was made for.

    Args:
      layout: Of its experience from now on.
      folder: Of the ring, which has one layout and size for life.
    """
    from tfagents_system.replay.ring_files import RingFiles, capacity_rows
    from tfagents_system.replay.stored_ring import differences

    if (ring := RingFiles.find(folder)) is None:
        return []
    lines = differences(layout, ring.layout, makes_do=False, words=("now", "before"))
    if not lines and (rows := capacity_rows(params, layout)) != ring.capacity_rows:
        lines = [f"rows: now {rows:,} (buffer_size={params.buffer_size}), before {ring.capacity_rows:,}"]
    return lines and [
        f"the experience in {folder} does not fit: {'; '.join(lines)}. A run's replay buffer keeps its columns and its "
        f"size: restore what it was, or begin another run with {from_line(run)} (--take all takes what fits)"
    ]


# Experts and evaluators.


def check_kinds_of_workers(
    params: TrainParamsBase, values: Mapping[str, Any], findings: Findings, enter: Callable[[str], None]
) -> None:
    """Whether experts that are to start have a policy, and evaluators something to evaluate.

    Args:
      values: The variables that could be read, by field.
      enter: Told when the user's hook begins.
    """
    count, saved = values.get("expert_workers"), values.get("expert_policy")
    if count:
        findings.fact(EXPERTS, f"{count} with {saved or 'TrainParams.expert_policy_ctor'}")
    if count and saved is None:
        enter("expert_policy_ctor")
        with told(findings, EXPERTS, "expert_policy_ctor", names_it=False):
            if not callable(policy := params.expert_policy_ctor()):
                raise UserError(
                    f"SAC_EXPERT_WORKERS={count} needs a policy, and TrainParams.expert_policy_ctor returned "
                    f"{shown(policy)}: set SAC_EXPERT_POLICY to a SavedModel, a policy checkpoint or an exported file, "
                    "or have the hook return a function"
                )
    if not is_kept(integer_from(0), params.num_eval_episodes) or params.num_eval_episodes:
        return
    if count := values.get("eval_workers"):
        findings.error(
            "params",
            f"SAC_EVAL_WORKERS={count} does not work with num_eval_episodes=0, nothing is evaluated: set "
            "SAC_EVAL_WORKERS=0 (with --set where the run has begun with it), or num_eval_episodes to at least 1",
        )
    elif values.get("worker_role") == EVAL:
        findings.error(
            "params",
            "workers of kind eval have nothing to do in a run with num_eval_episodes=0: choose another kind, or "
            "continue the run with --set num_eval_episodes=10",
        )


def check_saved_expert(
    values: Mapping[str, Any], observation_spec: Any, action_spec: Any, findings: Findings, enter: Callable[[str], None]
) -> None:
    """Whether the policy of SAC_EXPERT_POLICY can act in the environment, if an expert is to start.

    Args:
      values: The variables that could be read, by field.
      action_spec: In the environment's own units.
    """
    path = values.get("expert_policy")
    if path is None or not (values.get("expert_workers") or values.get("worker_role") == EXPERT):
        return
    from tfagents_system.policies.files import load_policy
    from tfagents_system.policies.fit import bounds_findings, shape_findings

    name = f"SAC_EXPERT_POLICY={path}"
    enter(f"loading {name}")
    with findings.catching(EXPERTS):
        policy = load_policy(path, "SAC_EXPERT_POLICY")
        if misfits := shape_findings(policy, observation_spec, action_spec):
            raise UserError(
                *(f"{name}: {misfit}. Name a policy that was trained in this environment" for misfit in misfits)
            )
        for misfit in bounds_findings(policy, action_spec):
            findings.note(EXPERTS, f"{name}: {misfit}: they are clipped")
