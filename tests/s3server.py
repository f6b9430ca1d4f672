"""A real S3 server for tests: moto's in a process of its own, or the one that the environment names.

``STOKER_TEST_S3_ENDPOINT``, ``STOKER_TEST_S3_KEY`` and ``STOKER_TEST_S3_SECRET`` name a server to use
instead, such as a Ceph gateway or MinIO; its user must be allowed to make and delete buckets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.config

from patience import PATIENCE

__all__ = ["Bucket", "CountingProxy", "S3Server", "make_bucket", "run_s3_server"]

_REGION = "us-east-1"
# Calls that moto answers before it begins to check signatures: those that make the user.
_CALLS_WITHOUT_KEYS = 3


@dataclass(frozen=True)
class S3Server:
    """A running server and a user on it who may do everything."""

    endpoint: str
    key: str
    secret: str

    def client(self) -> Any:
        """A boto3 client of that user, as an independent witness of what the server holds."""
        return _boto(self.endpoint, self.key, self.secret, "s3")

    @property
    def storage_options(self) -> dict[str, Any]:
        """``storage_options`` of that user."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": _REGION,
        }

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that say the same."""
        return {
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": _REGION,
        }


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of one test."""

    name: str
    server: S3Server

    @property
    def url(self) -> str:
        """``s3://<name>``."""
        return f"s3://{self.name}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What a store of it needs."""
        return self.server.storage_options

    def keys(self) -> list[str]:
        """All keys, by boto3."""
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]


class CountingProxy:
    """Forwards connections to a server, and keeps the first lines of the requests in them."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        self._server, self._listening = (host, int(port)), socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if count and data.startswith((b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")):
                    self.requests.append(data.split(b"\r\n", 1)[0])
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextlib.contextmanager
def run_s3_server() -> Iterator[S3Server]:
    """A server for as long as the block lasts."""
    endpoint = os.environ.get("STOKER_TEST_S3_ENDPOINT")
    if endpoint:
        yield S3Server(endpoint, os.environ["STOKER_TEST_S3_KEY"], os.environ["STOKER_TEST_S3_SECRET"])
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(_CALLS_WITHOUT_KEYS)
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(port, process)
        key, secret = _make_user(endpoint)
        yield S3Server(endpoint, key, secret)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextlib.contextmanager
def make_bucket(server: S3Server) -> Iterator[Bucket]:
    """A fresh bucket, which goes with all that is in it."""
    bucket = Bucket(f"stoker-{uuid.uuid4().hex[:20]}", server)
    client = server.client()
    client.create_bucket(Bucket=bucket.name)
    try:
        yield bucket
    finally:
        for upload in client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []):
            client.abort_multipart_upload(Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"])
        keys = bucket.keys()
        for start in range(0, len(keys), 1000):
            batch = [{"Key": key} for key in keys[start : start + 1000]]
            client.delete_objects(Bucket=bucket.name, Delete={"Objects": batch, "Quiet": True})
        client.delete_bucket(Bucket=bucket.name)


def _make_user(endpoint: str) -> tuple[str, str]:
    iam = _boto(endpoint, "nobody", "nothing", "iam")
    iam.create_user(UserName="stoker")
    pair = iam.create_access_key(UserName="stoker")["AccessKey"]
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="stoker", PolicyName="all", PolicyDocument=json.dumps(everything))
    return pair["AccessKeyId"], pair["SecretAccessKey"]


def _boto(endpoint: str, key: str, secret: str, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=_REGION,
        config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}),
    )


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"moto's server ended with status {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("moto's server did not start within 60 s")
