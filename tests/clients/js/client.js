// kafkajs against a broker: `client.js BOOTSTRAP`. Groups of several members are tested in `../groups`.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const assert = require('node:assert/strict')

const bootstrap = process.argv[2]
const run = `js-${process.pid}-${Date.now()}`
const kafka = new Kafka({ clientId: 'client.js', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { retries: 8 } })
const admin = kafka.admin()
const replicas = Number(process.env.REPLICAS ?? 1)
const WAIT_MS = 60_000

async function until (what, condition) {
  const deadline = Date.now() + WAIT_MS
  while (!await condition()) {
    assert(Date.now() < deadline, `not in time: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

async function newTopic (name, numPartitions = 1) {
  const topic = `${run}-${name}`
  assert(await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: replicas }] }))
  return topic
}

async function send (topic, messages, options = {}, how = {}) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, ...how })
  await producer.connect()
  const sent = await producer.send({ topic, messages, ...options })
  await producer.disconnect()
  return sent
}

// Runs a consumer until it has read `count` messages. `using` gets the running consumer and can, for example, seek.
async function read (topic, count, { groupId = `${topic}-${Math.random()}`, using = async () => {}, autoCommit = true } = {}) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100 })
  const found = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  let joined = false
  consumer.on(consumer.events.GROUP_JOIN, () => { joined = true })
  await consumer.run({ autoCommit, eachMessage: async ({ partition, message }) => { found.push({ partition, ...message }) } })
  await until('it has joined', () => joined)
  await using(consumer, found)
  await until(`${count} messages, not ${found.length}`, () => found.length >= count)
  await consumer.disconnect()
  return found
}

const text = message => [message.key, message.value].map(bytes => bytes && bytes.toString())

async function roundTrip (compression) {
  const topic = await newTopic(`round-trip-${compression}`)
  const sent = [['k', 'v'], [null, 'no key'], ['tombstone', null], ['', '']].map(([key, value]) => ({ key, value, headers: { h: 'x' } }))
  const many = Array.from({ length: 500 }, (_, i) => ({ key: `${i}`, value: `some text ${i}`, headers: { h: 'x' } }))
  await send(topic, [...sent, ...many], { acks: -1, compression })
  const found = await read(topic, 504)
  assert.deepEqual(found.map(message => message.offset), Array.from({ length: 504 }, (_, i) => `${i}`))
  assert.deepEqual(found.slice(0, 3).map(text), [['k', 'v'], [null, 'no key'], ['tombstone', null]])
  assert.deepEqual(found.slice(4).map(text), many.map(({ key, value }) => [key, value]))
  assert(found.every(message => message.headers.h.toString() === 'x'))
}

async function acks (number) {
  const topic = await newTopic(`acks-${number}`)
  await send(topic, [{ value: 'v' }], { acks: number }, { idempotent: false })
  assert.equal((await read(topic, 1)).length, 1)
}

async function transaction () {
  const topic = await newTopic('transaction')
  const producer = kafka.producer({ transactionalId: `${run}-transaction`, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  for (const value of ['first', 'aborted', 'last']) {
    const begun = await producer.transaction()
    await begun.send({ topic, messages: [{ value }] })
    await (value === 'aborted' ? begun.abort() : begun.commit())
  }
  await producer.disconnect()
  // kafkajs reads at read_committed by default.
  const found = await read(topic, 2)
  assert.deepEqual(found.map(message => [message.offset, message.value.toString()]), [['0', 'first'], ['4', 'last']])
}

async function byKey () { // the same key goes to the same partition
  const topic = await newTopic('by-key', 4)
  await send(topic, Array.from({ length: 200 }, (_, i) => ({ key: `${i % 20}`, value: `${i}` })))
  const homes = new Map()
  for (const { key, partition } of await read(topic, 200)) {
    assert.equal(homes.get(`${key}`) ?? partition, partition)
    homes.set(`${key}`, partition)
  }
  assert(new Set(homes.values()).size > 1)
}

async function resume () { // a second run of the group starts at the committed offset of the first
  const topic = await newTopic('resume')
  const groupId = `${topic}-group`
  await send(topic, [{ value: 'a' }, { value: 'b' }])
  const first = await read(topic, 2, { groupId })
  await send(topic, [{ value: 'c' }])
  const second = await read(topic, 1, { groupId })
  assert.deepEqual([...first, ...second].map(message => `${message.value}`), ['a', 'b', 'c'])
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  const [{ high }] = await admin.fetchTopicOffsets(topic)
  assert.equal(partitions[0].offset, high, 'no lag')
}

async function seek () {
  const topic = await newTopic('seek')
  await send(topic, Array.from({ length: 10 }, (_, i) => ({ value: `${i}` })))
  const using = async (consumer, found) => {
    await until('all read', () => found.length >= 10)
    consumer.seek({ topic, partition: 0, offset: '7' })
  }
  const found = await read(topic, 13, { using })
  assert.deepEqual(found.slice(10).map(message => `${message.value}`), ['7', '8', '9'])
}

async function pause () {
  const topic = await newTopic('pause')
  const using = async (consumer, found) => {
    consumer.pause([{ topic }])
    await send(topic, [{ value: 'a' }])
    await new Promise(resolve => setTimeout(resolve, 1000)) // no message comes, so no event can end the wait
    assert.equal(found.length, 0, 'it reads while it is paused')
    consumer.resume([{ topic }])
  }
  assert.equal((await read(topic, 1, { using })).length, 1)
}

async function groups () { // listed, described, offsets set and reset, deleted
  const topic = await newTopic('groups', 2)
  const groupId = `${topic}-group`
  await send(topic, [{ value: 'a', partition: 0 }, { value: 'b', partition: 1 }])
  await read(topic, 2, { groupId })
  assert((await admin.listGroups()).groups.some(group => group.groupId === groupId && group.protocolType === 'consumer'))
  await until('it is empty', async () => (await admin.describeGroups([groupId])).groups[0].state === 'Empty')
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '0' }] })
  assert.deepEqual((await read(topic, 1, { groupId })).map(message => `${message.value}`), ['a'])
  await admin.resetOffsets({ groupId, topic, earliest: true })
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic], resolveOffsets: true })
  assert.deepEqual(partitions.map(({ partition, offset }) => [partition, offset]).sort(), [[0, '0'], [1, '0']])
  await admin.deleteGroups([groupId])
  assert(!(await admin.listGroups()).groups.some(group => group.groupId === groupId))
}

async function topics () {
  const topic = await newTopic('topics')
  assert((await admin.listTopics()).includes(topic))
  await send(topic, ['a', 'b', 'c'].map(value => ({ value })))
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
  assert.deepEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: '3', high: '3', low: '2' }])
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  await until('3 partitions', async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 3)
  await admin.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '12345000' }] }] })
  const described = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic }] })
  assert.equal(described.resources[0].configEntries.find(entry => entry.configName === 'retention.ms').configValue, '12345000')
}

const CASES = [
  ['round trip', () => roundTrip(CompressionTypes.None)],
  ['round trip, gzip', () => roundTrip(CompressionTypes.GZIP)],
  ['acks=0', () => acks(0)],
  ['acks=1', () => acks(1)],
  ['transactions commit and abort', transaction],
  ['by key', byKey],
  ['commit and resume', resume],
  ['seek', seek],
  ['pause', pause],
  ['groups: list, describe, offsets, delete', groups],
  ['topics: partitions, records, configs', topics],
]

async function main () {
  let failed = 0
  await admin.connect()
  for (const [name, test] of CASES) {
    try {
      await test()
      console.log(`ok   kafkajs: ${name}`)
    } catch (error) { // a case may fail in any way; the others still run
      failed += 1
      console.log(`FAIL kafkajs: ${name}: ${error.stack ?? error}`)
    }
  }
  await admin.disconnect()
  console.log(`${CASES.length - failed} passed, ${failed} failed`)
  process.exit(failed ? 1 : 0)
}
main()
