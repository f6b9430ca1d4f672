"""The description of the system under test, ``systems/NAME.yaml``: a draft of it, and what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from stoker.bench.settings.yaml import read_yaml, write_yaml
from stoker.errors import ConfigError, import_option
from stoker.units import GIB

_OPEN: Final = "FILL IN"
_CLIENT: Final = "clients"
_RULES: Final = {"remap_time_in_seconds": "4.7.3", "simultaneous_write": "4.7.4", "simultaneous_read": "4.7.4"}
_RULES_ELSE: Final = "2.1.7"

SystemFault = tuple[str, str]
"""The number of the rule, and what is wrong."""


def draft_description(name: str, result: Mapping[str, Any]) -> str:
    """A description of which the clients are filled in, as far as a run knows them.

    Args:
        name: of the system.
        result: of a run on it.
    """
    environment, ranks = result["environment"], result["ranks"]
    system, _, release = environment["system"].partition(" ")
    chassis = {
        "model_name": _OPEN,
        "rack_units": 0,
        "cpu_model": environment["processor"] or _OPEN,
        "cpu_qty": 0,
        "cpu_cores": max((rank["processors"] for rank in ranks), default=0),
        "memory_capacity": max((rank["memory_bytes"] for rank in ranks), default=0) // GIB,
        "power": {
            "min_psus_active": 1,
            "psus_configured": [
                {"unit_count": 0, "inlet_voltage": 0, "nameplate_power_watts": 0, "efficiency": _OPEN},
            ],
        },
    }
    local = result["storage"]["local"]
    tree = {
        "system_under_test": {
            "solution": {
                "submission_name": name,
                "friendly_description": _OPEN,
                "architecture": {
                    "storage_location": _OPEN,
                    "benchmark_API": "file" if local else "object",
                    "product_API": _OPEN,
                    "client_footprint": _OPEN,
                    "client_installation": _OPEN,
                },
                "capabilities": {
                    "multi_host": len(result["world"]["hosts"]) > 1,
                    "simultaneous_write": _OPEN,
                    "simultaneous_read": _OPEN,
                    "remap_time_in_seconds": 0,
                },
            },
            "deployment": _OPEN,
            "product_nodes": [],
            "total_rack_units": 0,
            "clients": [
                {
                    "friendly_description": "hosts of the benchmark",
                    "quantity": len(result["world"]["hosts"]),
                    "chassis": chassis,
                    "networking": [
                        {"unit_count": 1, "type": _OPEN, "state": "up", "speed": 0, "traffic": ["data"]},
                    ],
                    "operating_system": {"name": system, "version": release or _OPEN},
                }
            ],
        }
    }
    return f"# Fill in what says {_OPEN}, and the zeros; stoker bench check names what is left.\n{write_yaml(tree)}"


def read_description(path: Path) -> Mapping[str, Any]:
    """A description.

    Raises:
        ConfigError: it is no YAML, or no mapping; says the line.
    """
    found = read_yaml(path).plain
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: a mapping is expected, with the key system_under_test")
    return found


def description_faults(found: Mapping[str, Any]) -> Iterator[SystemFault]:
    """Faults of a description, by the schema of MLPerf Storage v3 and what its values demand of each other."""
    jsonschema = import_option("jsonschema", "checking a submission needs jsonschema", "stoker[bench]")
    text = resources.files("stoker.bench.mlperf").joinpath("system.schema.json").read_text("utf-8")
    wrong = False
    for error in jsonschema.Draft202012Validator(json.loads(text)).iter_errors(found):
        wrong = True
        path = [str(one) for one in error.absolute_path]
        said = "is not filled in" if error.instance == _OPEN else _shortened(error.message)
        yield _RULES.get(path[-1] if path else "", _RULES_ELSE), f"{'.'.join(path) or 'the file'}: {said}"
    if not wrong:
        yield from _together(found["system_under_test"])


def _shortened(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:160]}..."


def _together(system: Mapping[str, Any]) -> Iterator[SystemFault]:
    architecture, can = system["solution"]["architecture"], system["solution"]["capabilities"]
    if (architecture["client_footprint"] == "n/a") != (architecture["client_installation"] == "n/a"):
        yield _RULES_ELSE, "client_footprint and client_installation are both n/a, or neither is"
    both = can["simultaneous_write"] and can["simultaneous_read"]
    if both and can["remap_time_in_seconds"]:
        yield "4.7.3", "remap_time_in_seconds must be 0 where simultaneous_write and simultaneous_read are true"
    if not both and not can["remap_time_in_seconds"]:
        yield "4.7.3", "remap_time_in_seconds must be above 0 where simultaneous_write or simultaneous_read is false"
    switches = system.get("product_switches") or []
    nodes = [
        (f"{kind}.{at}", one) for kind in ("product_nodes", _CLIENT) for at, one in enumerate(system.get(kind) or [])
    ]
    yield from _deployed(system, nodes, switches)
    location = architecture["storage_location"]
    if location == "local" and switches:
        yield _RULES_ELSE, "product_switches has no place where storage_location is local"
    for name, node in nodes:
        if location != "local" and not node.get("networking"):
            yield _RULES_ELSE, f"{name}.networking is wanted where storage_location is {location}"
        for port in node.get("networking") or []:
            if port["state"] == "up" and (not port.get("speed") or not port.get("traffic")):
                yield _RULES_ELSE, f"{name}.networking: a port that is up has a speed and a traffic"


def _deployed(
    system: Mapping[str, Any], nodes: list[tuple[str, Mapping[str, Any]]], switches: list[Mapping[str, Any]]
) -> Iterator[SystemFault]:
    cloud = system["deployment"] == "cloud"
    for name, node in nodes:
        for key in ("rack_units", "power"):
            given = node["chassis"].get(key) is not None
            if given == cloud:
                yield _RULES_ELSE, f"{name}.chassis.{key} {'has no place in a cloud' if cloud else 'is wanted onprem'}"
    if cloud:
        for key in ("product_switches", "rack_power_supplies"):
            if system.get(key):
                yield _RULES_ELSE, f"{key} has no place in a cloud"
        return
    units = sum(
        (node["chassis"].get("rack_units") or 0) * node["quantity"]
        for name, node in nodes
        if not name.startswith(_CLIENT)
    ) + sum(one["rack_units"] * one["unit_count"] for one in switches)
    if system.get("total_rack_units") != units:
        yield _RULES_ELSE, f"total_rack_units is {system.get('total_rack_units')}; nodes and switches have {units}"
