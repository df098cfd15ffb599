"""Stores for the objects of the measured brokers: a directory for each broker, or a bucket of versitygw
(`tests/clients/install optimized`). With `postgres`, objects are in versitygw and the index is in Debian's PostgreSQL,
as for a broker of a cluster.
bench/diskless imports this file."""
import glob, os, pathlib, shutil, subprocess, sys, tempfile
from brokers import CLIENTS, free_port, wait_for_port

HERE = pathlib.Path(__file__).resolve().parent


class DirectoryStore:
    """A store in the broker's default directory."""

    def settings(self, name, port=None):
        return {}

    def stop(self):
        pass


class S3Store:
    """A store of versitygw on a directory. Each broker has its own prefix."""

    def __init__(self, temp):
        directory, binary = pathlib.Path(temp) / "s3", CLIENTS / "bin/versitygw"
        (directory / "bucket").mkdir(parents=True)
        stamp = binary.parent / ".versitygw"
        if not stamp.exists() or "optimized" not in stamp.read_text():
            sys.exit(f"{binary} is missing or not optimized: run tests/clients/install optimized")
        self.port, self.relays = free_port(), []
        log = open(directory.parent / "versitygw.out", "ab")
        self.process = subprocess.Popen([binary, "--access", "key", "--secret", "secret", "--port", f"127.0.0.1:{self.port}", "posix", directory],
                                        stdout=log, stderr=log)
        wait_for_port(self.port, self.process)

    def settings(self, name, port=None):
        """Returns the settings of a broker that reaches the store at `port`, or at the store's own port if none is
        given."""
        return {"diskless.storage": f"s3://bucket/{name}", "diskless.storage.s3.endpoint.url": f"http://127.0.0.1:{port or self.port}",
                "diskless.storage.aws.access.key.id": "key", "diskless.storage.aws.secret.access.key": "secret"}

    def slow_puts(self, one_in, seconds):
        """Starts a relay in which one PUT in `one_in` takes `seconds` longer. Returns the relay's port."""
        return self.relay("slow_puts.py", one_in, seconds)

    def narrow(self, bytes_s):
        """Starts a relay whose link carries `bytes_s` bytes a second. Returns the relay's port."""
        return self.relay("narrow_store.py", bytes_s)

    def relay(self, program, *numbers):
        port = free_port()
        relay = subprocess.Popen([sys.executable, HERE / program, *map(str, (port, self.port, *numbers))])
        self.relays.append(relay)
        wait_for_port(port, relay)
        return port

    def stop(self):
        for process in (*self.relays, self.process):
            process.terminate()
            process.wait(30)


class PostgresStore(S3Store):
    """A store of versitygw. The index of each broker is in a PostgreSQL database on the disk."""

    def __init__(self, temp):
        super().__init__(temp)
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or sys.exit("PostgreSQL is missing: apt install postgresql")
        self.directory, self.programs, self.database_port = pathlib.Path(tempfile.mkdtemp()), pathlib.Path(programs[-1]), free_port()
        # PostgreSQL refuses to run as root.
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(self.directory, self.user)
        self.run("initdb", "-D", self.directory / "data", "-U", "postgres", "--auth=trust", "--no-locale", "-E", "UTF8")
        listens = f"-k {self.directory} -c listen_addresses=127.0.0.1 -p {self.database_port} -c max_connections=200"
        self.run("pg_ctl", "-D", self.directory / "data", "-l", self.directory / "log", "-w", "-o", listens, "start")

    def run(self, program, *arguments):
        subprocess.run([self.programs / program, *arguments], check=True, user=self.user, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")

    def settings(self, name, port=None):
        self.run("createdb", "-h", self.directory, "-p", str(self.database_port), "-U", "postgres", name)
        return super().settings(name, port) | {"node.id": 1, "control.plane": f"postgres://postgres@127.0.0.1:{self.database_port}/{name}"}

    def stop(self):
        super().stop()
        self.run("pg_ctl", "-D", self.directory / "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.directory)


STORES = {"folder": lambda temp: DirectoryStore(), "s3": S3Store, "postgres": PostgresStore}
