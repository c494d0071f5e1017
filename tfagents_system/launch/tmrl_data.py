"""The folder ~/TmrlData: TMRL's config.json, and what the commands of `tfagents_system.tmrl` keep beside it.

config/config.json      TMRL's own; its PASSWORD and WANDB_KEY are moved into the next ones
config/password         0600, the password of --server, --trainer and --worker
config/wandb_key        0600, the WANDB_KEY of config.json, for --trainer --wandb
resources/              valid examples of config.json
reward/reward.npz       the recorded trajectory of the car's track
credentials/            certificates: of the server, and for those that join it
server/ trainer/ worker/   run directories, by RUN_NAME
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.gpus import usable_gpus
from tfagents_system.machine.installed import is_installed
from tfagents_system.settings import tmrl_keys
from tfagents_system.settings.load_params import parse_object
from tfagents_system.settings.tmrl_rows import READ_BY_THE_GAME, Given, Translation
from tfagents_system.settings.tmrl_translation import translate

PARAMS = Path(__file__).resolve().parents[1] / "examples" / "tmrl" / "params.py"
_LIDAR = {"RUN_NAME": "SAC_4_LIDAR", "ENV": {"RTGYM_INTERFACE": "TM20LIDAR"}}
_SECRETS = {"PASSWORD": "password", "WANDB_KEY": "wandb_key"}  # Keys, and the files that they are moved into.
_OWN_RIGHTS, _FOLDER_RIGHTS = 0o600, 0o700


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a config.json says, with `--config` in it.

    Attributes:
      given: The values of all keys by path.
      translation: What they become here.
      has_game: TMRL's own interface drives the game.
      secrets: PASSWORD and WANDB_KEY of `--config`, which count for its command alone.
    """

    given: Given
    translation: Translation
    has_game: bool
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True)
class TmrlData:
    """The folder.

    Attributes:
      root: Usually ~/TmrlData.
    """

    root: Path

    @classmethod
    def of_user(cls) -> TmrlData:
        """TMRL's own place."""
        return cls(Path.home() / "TmrlData")

    @property
    def config_file(self) -> Path:
        return self.root / "config" / "config.json"

    @property
    def password_file(self) -> Path:
        return self._secret_file("PASSWORD")

    @property
    def wandb_key_file(self) -> Path:
        return self._secret_file("WANDB_KEY")

    def _secret_file(self, name: str) -> Path:
        return self.root / "config" / _SECRETS[name]

    @property
    def reward_file(self) -> Path:
        return self.root / "reward" / "reward.npz"

    @property
    def credentials_folder(self) -> Path:
        """That of an empty TLS_CREDENTIALS_DIRECTORY."""
        return self.root / "credentials"

    def install(self) -> list[str]:
        """Makes what is missing, except for the reward; returns a line for each file that was made."""
        made = []
        files = {
            self.config_file: tmrl_keys.default_config(),
            self.root / "resources" / "config_full.json": tmrl_keys.default_config(),
            self.root / "resources" / "config_lidar.json": tmrl_keys.merged(tmrl_keys.default_config(), _LIDAR),
        }
        for path, config in files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, tmrl_keys.to_json(config).encode())
                made.append(f"made {path}")
        self.credentials_folder.mkdir(mode=_FOLDER_RIGHTS, exist_ok=True)  # Files are copied into it from the server's.
        if not self.password_file.exists():
            _write_secret(self.password_file, secrets.token_hex(16))
            made.append(f"made {self.password_file}: copy it to the other machines of a run")
        return made

    def load(self, override: str | None = None) -> Loaded:
        """Reads config.json, and moves its password and its key of Weights & Biases.

        Args:
          override: Of `--config`, a Python literal.

        Raises:
          UserError: With all findings about both.
        """
        findings: list[str] = []
        config, over = None, {}
        try:
            text = self._text()
            config = parse_object(text, str(self.config_file), '{"RUN_NAME": "my_run"}')
        except UserError as error:
            findings += error.findings
        try:
            over = tmrl_keys.parse_override(override) if override is not None else {}
        except UserError as error:
            findings += error.findings
        where = str(self.config_file) + (" with --config" if over else "")
        merged = tmrl_keys.merged(tmrl_keys.default_config() if config is None else config, over)
        try:
            given = tmrl_keys.read_keys(merged, where)
        except UserError as error:
            findings += error.findings
        if findings:
            raise UserError(*findings)
        has_game = is_installed("tmrl")
        translation = translate(given, has_game=has_game, has_gpu=bool(usable_gpus(os.environ)))
        given_secrets = {name: secret for name in _SECRETS if (secret := _secret_in(given, name))}
        own = {name: secret for name, secret in given_secrets.items() if name in over}
        if has_game and config is not None:
            translation.lines += self._unheard(given, config)
        for name in given_secrets.keys() - own.keys():
            translation.lines.append(self._move_secret(name, given_secrets[name]))
        return Loaded(given, translation, has_game, own)

    def _unheard(self, given: Given, config: dict[str, Any]) -> list[str]:
        """Keys that --config changes, and that the game's interface reads from config.json itself."""
        in_file = tmrl_keys.read_keys(tmrl_keys.merged(tmrl_keys.default_config(), config), str(self.config_file))
        return [
            f"{path} of --config has no effect: the game's interface reads it from {self.config_file}, set it there"
            for path in READ_BY_THE_GAME
            if given[path] != in_file[path]
        ]

    def secret_file(self, name: str, loaded: Loaded, beside: Path) -> Path | None:
        """The file with PASSWORD or WANDB_KEY; None where there is none.

        Args:
          beside: The vars file of a command; one of `--config` is written beside it.
        """
        if name in loaded.secrets:
            path = beside.with_name(f"{beside.stem}+{_SECRETS[name]}")
            _write_secret(path, loaded.secrets[name])
            return path
        path = self._secret_file(name)
        return path if path.exists() else None

    def _text(self) -> str:
        try:
            return self.config_file.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise UserError(
                f"{self.config_file} can't be read ({error.strerror}): make it with --install, or copy yours there"
            ) from None
        except UnicodeDecodeError:
            raise UserError(f"{self.config_file} is not UTF-8 text: save it as UTF-8") from None

    def _move_secret(self, name: str, secret: str) -> str:
        """Writes it into its file, and puts the default in its place in config.json; says so."""
        path, default = self._secret_file(name), _default(name)
        _write_secret(path, secret)
        text = self._text()
        in_json = re.compile(rf'("{name}"\s*:\s*)"(?:[^"\\]|\\.)*"')
        emptied = in_json.sub(lambda found: found[1] + json.dumps(default), text)
        if json.loads(emptied) != {**json.loads(text), name: default}:  # There is another one, deeper in it.
            emptied = tmrl_keys.to_json({**json.loads(text), name: default})
        write_atomically(self.config_file, emptied.encode(), mode=self.config_file.stat().st_mode & 0o777)
        return f"{name} was moved from {self.config_file} to {path}, which only you can read"


def _default(name: str) -> str:
    return str(tmrl_keys.KEYS[name].default)


def _secret_in(given: Given, name: str) -> str:
    """Empty where nothing is given but the default."""
    secret = str(given[name]).strip()
    return "" if secret == _default(name) else secret


def _write_secret(path: Path, secret: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{secret}\n".encode(), mode=_OWN_RIGHTS)
