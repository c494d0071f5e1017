"""A run directory as a long run leaves it, made in a moment: for tests of what reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.support.settings_for_tests import variables_with, write_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Overrides

HOSTILE = "<b>x</b><img src=x onerror=\"document.title='owned'\">"
_METRICS = ("critic_loss", "actor_loss", "alpha", "q_mean", "updates_per_s", "env_steps_per_s", "curriculum/mass")


def make_run(folder: Path, rows: int = 200, *, more_metrics: int = 0, video_bytes: int = 0) -> RunPaths:
    """Learns from -1000 to about -100, evaluated at every tenth row; its third metric has one peak.

    Args:
      more_metrics: Further ones, of the environment.
    """
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    own = [f"train/force_{k}" for k in range(more_metrics)]
    names = ["train_step", "iteration", "env_steps", "wall_time_s", "train_return", "eval_return", "eval_return_std"]
    lines, episodes = [",".join([*names, *_METRICS, *own, f'"train/{HOSTILE.replace(chr(34), chr(34) * 2)}"'])], []
    for k in range(rows):
        value = -1000 + 900 * (1 - math.exp(-5 * k / rows)) + 20 * math.sin(k)
        evaluated = [f"{value + 30:.6g}", "25.5"] if k % 10 == 9 else ["", ""]
        peak = 1e4 if k == rows // 3 else 0.5
        metrics = [300 / (1 + k), 0.1 * k + math.sin(k), peak, value / 10, 450 + k % 7, 1800 + k % 11, k // 50]
        where = [100 * k, k, 200 * k, 1.5 * k]
        lines.append(
            ",".join(
                map(str, [*where, f"{value:.6g}", *evaluated, *metrics, *([f"{math.sin(k):.6g}"] * more_metrics), 1])
            )
        )
        episodes += [f"{','.join(map(str, where))},{w},{value + 10 * w:.6g},{200 - w},1" for w in range(2)]
    paths.metrics_csv.write_text("\n".join(lines) + "\n")
    header = "train_step,iteration,env_steps,wall_time_s,worker,return,length,success"
    paths.episodes_csv.write_text("\n".join([header, *episodes]) + "\n")
    _write_inputs(paths, seed=3)
    if video_bytes:
        paths.videos.mkdir()
        (paths.videos / "latest_seed_0_episode_1.mp4").write_bytes(bytes(video_bytes))
        (paths.videos / "montage.mp4").write_bytes(b"montage")
    return paths


def _write_inputs(paths: RunPaths, seed: int) -> None:
    paths.params.write_text("class TrainParams: pass\n")
    paths.config.write_text('{"horizon": 200}')
    variables = variables_with(exp_dir=paths.exp_dir, seed=seed, train_cpus=2, job_prelude="export TOKEN=secret")
    params = {"discount": 0.99, "target_update_tau": 0.01, "algorithm": "sac", "num_iter": 200}
    overrides = Overrides({"target_update_tau": 0.01}, {"env": {"text": HOSTILE}})
    config = {"horizon": 200, "env": {"text": HOSTILE}}
    write_run_json(paths, variables=variables, overrides=overrides, attributes=params, config=config, params_kept=None)
    content = json.loads(paths.run_json.read_text())
    start = {"versions": {"tfagents_system": "0.1.0"}, "commit": "07ba191db632"}
    start |= {"machine": {"host": "node7", "cpus": 8, "cpu": "AMD EPYC 7B13"}}
    content |= {"environment": "Reacher-v5", "start": content["start"] | start}
    paths.run_json.write_text(json.dumps(content))
    run = {"name": paths.exp_dir.name, "state": "done", "started_at": 1.0, "updated_at": 2.0, "exit_code": 0}
    ended = {"state": "done", "alive": False, "restarts": 0}
    roles = {name: {"role": name, **ended} for name in ("replay", "worker_0", "worker_1")}
    roles["trainer"] = {"role": "trainer", **ended, "num_iter": 200}
    paths.status_json.write_text(json.dumps({"run": run, "plan": {"replay": [0]}, "roles": roles, "pinned": True}))
