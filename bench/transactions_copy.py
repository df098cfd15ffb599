"""Copies a topic in transactions with librdkafka: BOOTSTRAP FROM TO RECORDS TRANSACTION. Prints records/s, leaving out
the first fifth."""
import sys, time, uuid
from confluent_kafka import Consumer, Producer, TopicPartition

bootstrap, source, target, count, most = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"copy-{target}", "isolation.level": "read_committed",
                     "auto.offset.reset": "earliest", "enable.auto.commit": False})
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"copy-{uuid.uuid4()}", "linger.ms": 0})
producer.init_transactions()
consumer.subscribe([source])
copied, counted, began = 0, 0, None
while copied < count:
    records = consumer.consume(most, timeout=0.2)
    if not records:
        continue
    producer.begin_transaction()
    ends = {}
    for record in records:
        if record.error():
            sys.exit(f"cannot consume: {record.error()}")
        producer.produce(target, record.value(), partition=record.partition())
        ends[record.partition()] = record.offset() + 1
    offsets = [TopicPartition(source, partition, offset) for partition, offset in ends.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
    producer.commit_transaction()
    copied += len(records)
    if began:
        counted += len(records)
    elif copied >= count // 5:
        began = time.perf_counter()
print(f"{counted / (time.perf_counter() - began):.1f} records/s")
consumer.close()
