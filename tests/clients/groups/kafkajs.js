// A member of a group with kafkajs. Its output is that of Kafka's VerifiableConsumer: see `groups.py`.
const { Kafka, logLevel } = require('kafkajs')
const { parseArgs } = require('util')

const names = ['bootstrap-server', 'group-id', 'topic', 'pattern', 'session-timeout', 'group-instance-id', 'group-protocol', 'assignment-strategy']
const given = parseArgs({ options: Object.fromEntries(names.map(name => [name, { type: 'string' }])) }).values

const say = (name, more = {}) => console.log(JSON.stringify({ name, ...more }))
const kafka = new Kafka({ clientId: 'kafkajs', brokers: given['bootstrap-server'].split(','), logLevel: logLevel.NOTHING })
const consumer = kafka.consumer({
  groupId: given['group-id'], sessionTimeout: Number(given['session-timeout']), heartbeatInterval: 500,
  metadataMaxAge: 1000, maxWaitTimeInMs: 100,
})

let owned = []
const revoke = () => {
  if (owned.length) say('partitions_revoked', { partitions: owned })
  owned = []
}
consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  revoke()
  owned = Object.entries(payload.memberAssignment).flatMap(([topic, all]) => all.map(partition => ({ topic, partition })))
  say('partitions_assigned', { partitions: owned })
})
consumer.on(consumer.events.REBALANCING, revoke)

async function eachBatch ({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat }) {
  const { topic, partition, messages } = batch
  const [minOffset, maxOffset] = [messages[0], messages.at(-1)].map(message => Number(message.offset))
  say('records_consumed', { count: messages.length, partitions: [{ topic, partition, count: messages.length, minOffset, maxOffset }] })
  resolveOffset(messages.at(-1).offset)
  await heartbeat()
  const offset = String(maxOffset + 1)
  await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset }] }] })
  say('offsets_committed', { success: true, offsets: [{ topic, partition, offset: maxOffset + 1 }] })
}

async function main () {
  await consumer.connect()
  await consumer.subscribe({ topics: [given.pattern ? new RegExp(given.pattern) : given.topic], fromBeginning: true })
  await consumer.run({ autoCommit: false, eachBatch })
  say('startup_complete')
}

process.on('SIGTERM', async () => {
  await consumer.disconnect()
  say('shutdown_complete')
  process.exit(0)
})
main().catch(error => { console.error(error); process.exit(1) })
