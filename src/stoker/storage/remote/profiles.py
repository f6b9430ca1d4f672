"""AWS's shared configuration files, as far as access keys, region and endpoint go."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from stoker.errors import ConfigError


def read_profile(name: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a profile in ``~/.aws/config`` and ``~/.aws/credentials``, plus its ``name``.

    Args:
        name: the profile, or ``None`` for ``default``.
        environ: ``AWS_CONFIG_FILE``, ``AWS_SHARED_CREDENTIALS_FILE`` and ``HOME`` say where the files are.

    Returns:
        The profile's settings by AWS's names (``aws_access_key_id``, ``region``, ``endpoint_url``, ...);
        only ``name`` where there is no such profile.

    Raises:
        ConfigError: a file that is there and can not be read.
    """
    name = name or "default"
    home = environ.get("HOME") or os.path.expanduser("~")
    found = {"name": name}
    sections = ("default",) if name == "default" else (f"profile {name}", name)
    for variable, default in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        path = Path(os.path.expanduser(environ.get(variable) or f"{home}/.aws/{default}"))
        parser = configparser.RawConfigParser(default_section="\0", strict=False)
        try:
            with path.open(encoding="utf-8") as file:
                parser.read_file(file)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            # The parser's own message quotes the line, which may hold a secret.
            raise ConfigError(f"{path}: not a readable AWS configuration file ({type(error).__name__}).") from None
        for section in sections:
            if parser.has_section(section):
                found.update((key, value.strip()) for key, value in parser.items(section) if value and value.strip())
                break
    return {**found, "name": name}
