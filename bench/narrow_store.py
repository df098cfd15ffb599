"""A relay in front of an object store. Its link carries BYTES_S bytes a second in each direction, and all connections
share it. Run as:

    narrow_store.py PORT TO_PORT BYTES_S

The relay listens on 127.0.0.1:PORT until it is killed.
"""
import asyncio, socket, sys, time

CHUNK = 1 << 14
LATE_MAX = 0.1


class Direction:
    """A direction of the link. Its bytes are sent in order and at the link's rate."""

    def __init__(self, bytes_s):
        self.bytes_s, self.free_at = bytes_s, 0.0

    async def copy(self, source, sink):
        try:
            while part := await source.read(CHUNK):
                # A sleep may last too long on a busy machine. The next bytes are then sent earlier, by up to LATE_MAX.
                self.free_at = max(self.free_at, time.monotonic() - LATE_MAX) + len(part) / self.bytes_s
                await asyncio.sleep(max(0, self.free_at - time.monotonic()))
                sink.write(part)
                await sink.drain()
            sink.write_eof()
        except OSError:
            sink.close()


async def main(port, to_port, bytes_s):
    to_store, to_client = Direction(bytes_s), Direction(bytes_s)

    async def serve(near, near_out):
        # The buffers of a connection are small (see below for the receive buffer). A sender therefore cannot get far
        # ahead of the link.
        far, far_out = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(to_store.copy(near, far_out), to_client.copy(far, near_out))
        far_out.close()
        near_out.close()

    listener = socket.create_server(("127.0.0.1", port))
    # Connections inherit the listener's receive buffer. With the default size, the relay would accept 6 MB at once.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK)
    server = await asyncio.start_server(serve, sock=listener, limit=CHUNK)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4])))
