"""Plays a saved policy: returns, lengths, and a video of each episode.

Needs TensorFlow and the environment, but no Reverb, and writes nothing but the videos.
"""

# ruff: noqa: E402 (sys.path is put right before our own modules are imported)
from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    # A script's own folder comes first in sys.path, where our modules would hide others of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "tfagents_system"]
    sys.path.insert(0, str(_ROOT))

import argparse
import os
from collections.abc import Sequence

from tfagents_system.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    OptionParser,
    UserError,
    exit_with,
)
from tfagents_system.playing.play import REPLAY, play, play_montage, replay, summary
from tfagents_system.playing.saved_run import (
    checkpoint_in_words,
    find_checkpoint,
    find_path,
    load_run_params,
    milestones,
    output_folder,
)
from tfagents_system.run_files.run_paths import RunPaths


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags, findings = _parse(arguments)
    paths, what = None, list[Path]()
    try:
        paths = _run_paths(flags)
        what = _what_is_played(flags, paths)
    except UserError as error:
        findings += error.findings
    if findings:
        raise UserError(*findings)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # Single observations are faster on the CPU.
    if not flags.no_video:
        from tfagents_system.envs import rendering

        rendering.prepare_headless()
    params = load_run_params(paths, flags.params, flags.config)
    from tfagents_system.envs.faults import EnvironmentFault

    try:
        if flags.montage:
            play_montage(params, what, flags.seed, _video_dir(flags, paths))
            return EXIT_DONE
        video_dir = None if flags.no_video else _video_dir(flags, paths)
        if flags.replay_actions:
            print(replay(params, what[0], video_dir))
        else:
            print(checkpoint_in_words(paths, what[0]) if paths else what[0].name, flush=True)
            print(summary(play(params, what[0], flags.num_episodes, flags.seed, video_dir)))
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _run_paths(flags: argparse.Namespace) -> RunPaths | None:
    """The run directory; that of a recorded episode where none is given."""
    if flags.exp_dir is not None:
        return RunPaths(find_path(flags.exp_dir, "RUN", Path.is_dir))
    if flags.replay_actions is None or flags.params is not None:
        return None
    paths = RunPaths(find_path(flags.replay_actions, REPLAY, Path.is_file).parent.parent)
    return paths if paths.params.is_file() else None


def _what_is_played(flags: argparse.Namespace, paths: RunPaths | None) -> list[Path]:
    """One policy, the checkpoints of a montage, or a recorded episode."""
    if flags.replay_actions is not None:
        return [find_path(flags.replay_actions, REPLAY, Path.is_file)]
    if flags.policy is not None:
        return [find_path(flags.policy, "--policy", Path.exists)]
    if paths is None:
        return []
    return milestones(paths) if flags.montage else [find_checkpoint(paths, flags.checkpoint)]


def _video_dir(flags: argparse.Namespace, paths: RunPaths | None) -> Path:
    if flags.out:
        return output_folder(flags.out, "--out")
    return (paths.videos if paths else Path("videos")).absolute()


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and all that is wrong with them."""
    parser = OptionParser()
    parser.add_argument("exp_dir", nargs="?", metavar="RUN", default=argparse.SUPPRESS, help="run directory")
    parser.add_argument("--exp-dir", metavar="RUN", help="the same, as an option")
    parser.add_argument("--params", metavar="PARAMS.py", help="file with TrainParams (default: the run's copy)")
    parser.add_argument("--config", metavar="JSON", help="JSON of the environment (default: the run's copy)")
    parser.add_argument("--num-episodes", default=1, metavar="N", help="episodes to play (default: 1)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint", metavar="NAME", help="name in policies/checkpoints, latest or best (default: best)"
    )
    which.add_argument("--policy", metavar="PATH", help="another policy: a SavedModel, or what sac export has written")
    which.add_argument("--montage", action="store_true", help="show first, middle and best checkpoint in one video")
    which.add_argument("--replay-actions", metavar="FILE", help="repeat a recorded episode, one of episodes/*.npz")
    parser.add_argument("--seed", default=0, metavar="N", help="seed of the environment (default: 0)")
    parser.add_argument("--no-video", action="store_true", help="write no video")
    parser.add_argument("--out", metavar="FOLDER", help="folder of videos (default: videos/ of the run, or here)")
    flags, findings = parser.parse_args(arguments), list[str]()
    for name, low in (("num_episodes", 1), ("seed", 0)):
        text = str(getattr(flags, name))
        if not text.isdecimal() or int(text) < low:
            findings.append(f"--{name.replace('_', '-')} must be a whole number of at least {low}, found {text}")
        setattr(flags, name, max(low, int(text)) if text.isdecimal() else low)
    if flags.exp_dir is None and flags.policy is None and flags.replay_actions is None:
        findings.append("there is nothing to play: give a run directory, or --policy with --params and --config")
    if flags.montage and flags.no_video:
        findings.append("--montage is a video: leave out --no-video")
    if flags.montage and flags.num_episodes != 1:
        findings.append("--montage plays one episode of each checkpoint: leave out --num-episodes")
    if flags.replay_actions and (flags.num_episodes != 1 or flags.seed):
        findings.append("--replay-actions repeats one episode with its own seed: leave out --num-episodes and --seed")
    return flags, findings


if __name__ == "__main__":
    exit_with(main)
