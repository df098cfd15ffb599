"""Where diskless topics of a measured broker have their objects: a folder of its own, or a bucket of versitygw, which tests/clients/install puts there.
Not a library: bench/diskless imports it.
"""
import pathlib, subprocess, sys
from brokers import CLIENTS, free_port, wait_for_port

HERE = pathlib.Path(__file__).resolve().parent


class FolderStore:
    """The folder that a broker has by itself."""

    def settings(self, name, port=None):
        return {}

    def stop(self):
        pass


class S3Store:
    """versitygw on a folder, in which brokers have a prefix each."""

    def __init__(self, temp):
        folder, binary = pathlib.Path(temp) / "s3", CLIENTS / "bin/versitygw"
        (folder / "bucket").mkdir(parents=True)
        if not binary.exists():
            sys.exit(f"{binary} is not there: tests/clients/install puts it there")
        self.port, self.relays = free_port(), []
        log = open(folder.parent / "versitygw.out", "ab")
        self.process = subprocess.Popen([binary, "--access", "key", "--secret", "secret", "--port", f"127.0.0.1:{self.port}", "posix", folder],
                                        stdout=log, stderr=log)
        wait_for_port(self.port, self.process)

    def settings(self, name, port=None):
        """Those of a broker, which reaches the store at this port instead of its own."""
        return {"diskless.storage": f"s3://bucket/{name}", "diskless.storage.s3.endpoint.url": f"http://127.0.0.1:{port or self.port}",
                "diskless.storage.aws.access.key.id": "key", "diskless.storage.aws.secret.access.key": "secret"}

    def slow_puts(self, one_in, seconds):
        """The port of a relay before it, in which one PUT in so many takes so much longer."""
        port = free_port()
        relay = subprocess.Popen([sys.executable, HERE / "slow_puts.py", *map(str, (port, self.port, one_in, seconds))])
        self.relays.append(relay)
        wait_for_port(port, relay)
        return port

    def stop(self):
        for process in (*self.relays, self.process):
            process.terminate()
            process.wait(30)


STORES = {"folder": lambda temp: FolderStore(), "s3": S3Store}
