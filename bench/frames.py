"""Encodes Fetch and Produce requests for measurements in which no client may add a delay or change the bytes. It has
only the versions that the programs of bench/ use, so it is no protocol library."""
import struct, time


def framed(api, version, correlation, body):
    header = struct.pack(">hhi", api, version, correlation) + struct.pack(">h5s", 5, b"bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def fetch_frame(topic, correlation):
    """Returns the frame of a Fetch 4 of one partition from offset 0. It requests at least one byte and waits up to 500
    ms."""
    body = struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + struct.pack(">i", 1) + text(topic)
    return framed(1, 4, correlation, body + struct.pack(">iiqi", 1, 0, 0, 1 << 20))


CRC_TABLE = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    CRC_TABLE.append(value)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def varint(value):
    """Encodes a number as in records: zigzag, with seven bits in each byte."""
    value, data = value << 1 ^ value >> 63, b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def produce_frame(topic, partition=0, value=b"x"):
    """Returns the frame of a Produce 3 with one batch of one record."""
    now = int(time.time() * 1000)
    record = bytes([0, 0, 0, 1]) + varint(len(value)) + value + b"\0"  # attributes, deltas, null key, the value, no headers
    checked = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + varint(len(record)) + record
    batch = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(checked), -1, 2, crc32c(checked)) + checked
    body = struct.pack(">hhi", -1, -1, 5000) + struct.pack(">i", 1) + text(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    return framed(0, 3, 1, body)


def receive(s):
    def exactly(n):
        data = b""
        while len(data) < n:
            more = s.recv(n - len(data))
            if not more:
                raise OSError("closed")
            data += more
        return data
    return exactly(struct.unpack(">i", exactly(4))[0])


def produce_succeeded(response):
    name = struct.unpack(">h", response[8:10])[0]
    return struct.unpack(">h", response[10 + name + 8:10 + name + 10])[0] == 0
