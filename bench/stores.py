"""Stores for the objects of measured brokers: a directory of their own, or a bucket of versitygw (`tests/clients/install
optimized`). With `postgres` the index is in a PostgreSQL of Debian's, as for a broker of a
cluster. Not a library: bench/diskless imports it."""
import glob, os, pathlib, shutil, subprocess, sys, tempfile
from brokers import CLIENTS, free_port, wait_for_port

HERE = pathlib.Path(__file__).resolve().parent


class FolderStore:
    """Store in the default directory of a broker."""

    def settings(self, name, port=None):
        return {}

    def stop(self):
        pass


class S3Store:
    """Store of versitygw on a directory, with a prefix for each broker."""

    def __init__(self, temp):
        folder, binary = pathlib.Path(temp) / "s3", CLIENTS / "bin/versitygw"
        (folder / "bucket").mkdir(parents=True)
        stamp = binary.parent / ".versitygw"
        if not stamp.exists() or "optimized" not in stamp.read_text():
            sys.exit(f"{binary} is missing or not optimized: run tests/clients/install optimized")
        self.port, self.relays = free_port(), []
        log = open(folder.parent / "versitygw.out", "ab")
        self.process = subprocess.Popen([binary, "--access", "key", "--secret", "secret", "--port", f"127.0.0.1:{self.port}", "posix", folder],
                                        stdout=log, stderr=log)
        wait_for_port(self.port, self.process)

    def settings(self, name, port=None):
        """Settings of a broker that reaches the store at `port`, or at the store's own port without one."""
        return {"diskless.storage": f"s3://bucket/{name}", "diskless.storage.s3.endpoint.url": f"http://127.0.0.1:{port or self.port}",
                "diskless.storage.aws.access.key.id": "key", "diskless.storage.aws.secret.access.key": "secret"}

    def slow_puts(self, one_in, seconds):
        """Port of a relay before the store, in which one PUT in `one_in` takes `seconds` longer."""
        return self.relay("slow_puts.py", one_in, seconds)

    def narrow(self, bytes_s):
        """Port of a relay before the store whose link carries `bytes_s` bytes a second."""
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
    """Store of versitygw, with a PostgreSQL database on the disk for each broker's index."""

    def __init__(self, temp):
        super().__init__(temp)
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or sys.exit("PostgreSQL is missing: apt install postgresql")
        self.folder, self.programs, self.database_port = pathlib.Path(tempfile.mkdtemp()), pathlib.Path(programs[-1]), free_port()
        # PostgreSQL refuses to run as root.
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        self.run("initdb", "-D", self.folder / "data", "-U", "postgres", "--auth=trust", "--no-locale", "-E", "UTF8")
        listens = f"-k {self.folder} -c listen_addresses=127.0.0.1 -p {self.database_port} -c max_connections=200"
        self.run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "-o", listens, "start")

    def run(self, program, *arguments):
        subprocess.run([self.programs / program, *arguments], check=True, user=self.user, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")

    def settings(self, name, port=None):
        self.run("createdb", "-h", self.folder, "-p", str(self.database_port), "-U", "postgres", name)
        return super().settings(name, port) | {"node.id": 1, "control.plane": f"postgres://postgres@127.0.0.1:{self.database_port}/{name}"}

    def stop(self):
        super().stop()
        self.run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder)


STORES = {"folder": lambda temp: FolderStore(), "s3": S3Store, "postgres": PostgresStore}
