"""A relay in front of an object store that speaks S3 over HTTP/1.1. One PUT in ONE_IN takes SECONDS longer, as in a
store with a long tail. It keeps no state of requests, because a client waits for each response before it sends the next
request. Run as:

    slow_puts.py PORT TO_PORT ONE_IN SECONDS

The relay listens on 127.0.0.1:PORT until it is killed.
"""
import asyncio, sys

CHUNK = 1 << 18


class SlowPuts:
    """The relay. `puts` is the number of PUTs so far."""

    def __init__(self, to_port, one_in, seconds):
        self.to_port, self.one_in, self.seconds, self.puts = to_port, one_in, seconds, 0

    async def serve(self, near, near_out):
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            return near_out.close()
        answers = asyncio.create_task(self.copy(far, near_out))
        try:
            await self.requests(near, far_out)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            far_out.close()
            await answers
            near_out.close()

    async def requests(self, near, far_out):
        while True:
            head = await near.readuntil(b"\r\n\r\n")
            if head.startswith(b"PUT "):
                self.puts += 1
                if self.puts % self.one_in == 0:
                    await asyncio.sleep(self.seconds)
            far_out.write(head)
            left = content_length(head)
            while left:
                part = await near.read(min(left, CHUNK))
                if not part:
                    return
                left -= len(part)
                far_out.write(part)
                await far_out.drain()
            await far_out.drain()

    @staticmethod
    async def copy(far, near_out):
        try:
            while part := await far.read(CHUNK):
                near_out.write(part)
                await near_out.drain()
        except OSError:
            pass
        near_out.close()


def content_length(head):
    lines = (line.split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    return next((int(value) for name, value in lines if name.lower() == b"content-length"), 0)


async def main(port, to_port, one_in, seconds):
    server = await asyncio.start_server(SlowPuts(to_port, one_in, seconds).serve, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
