// franz-go against a broker: `client BOOTSTRAP`.
//
// Groups are tested elsewhere. Partitions are assigned by hand, and no offset is committed. Every case reads its
// records back and compares keys, values, headers, timestamps and offsets exactly.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const wait = 60 * time.Second

var (
	bootstrap = os.Args[1]
	replicas  = replicationFactor()
	run       = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().Unix())
	t0        = time.UnixMilli(time.Now().UnixMilli()).Add(-10 * time.Minute)     // inside every default timestamp bound
	admin     = kadm.NewClient(client(kgo.MetadataMinAge(50 * time.Millisecond))) // kadm answers from this cache
)

// A testCase fails by panicking, so that each check is a single line.
type testCase struct {
	name string
	run  func()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func want(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Errorf(format, args...))
	}
}

func refused(code *kerr.Error, err error) {
	want(errors.Is(err, code), "refused with %v, not %v", err, code)
}

func within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	time.AfterFunc(wait, cancel)
	return ctx
}

// replicationFactor returns how many replicas the topics of the cases have.
func replicationFactor() int16 {
	count, err := strconv.ParseInt(cmp.Or(os.Getenv("REPLICAS"), "1"), 10, 16)
	check(err)
	return int16(count)
}

func until(condition func() bool) {
	for ctx := within(); !condition(); {
		check(ctx.Err())
	}
}

// --- writing and reading ---------------------------------------------------------------------------

// connection returns options with the broker's address. If TLS names a file of Kafka's client properties, it adds
// those.
func connection() []kgo.Opt {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...)}
	path := os.Getenv("TLS")
	if path == "" {
		return options
	}
	text, err := os.ReadFile(path)
	check(err)
	given := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		given[key] = value
	}
	authorities, err := os.ReadFile(given["ssl.truststore.location"])
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	want(config.RootCAs.AppendCertsFromPEM(authorities), "no certificates")
	if identity := given["ssl.keystore.location"]; identity != "" {
		pair, err := tls.LoadX509KeyPair(identity, identity)
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return append(options, kgo.DialTLSConfig(config))
}

func client(options ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append(connection(), options...)...)
	check(err)
	return c
}

func at(i int) time.Time { return t0.Add(time.Duration(i) * 10 * time.Millisecond) }

// oddRecords returns records that are easily lost or merged, followed by enough bytes to compress.
func oddRecords() []*kgo.Record {
	headers := []kgo.RecordHeader{
		{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "h", Value: nil},
		{Key: "empty", Value: []byte{}}, {Key: "\u00fcn\u00ef", Value: []byte("\x00\xff")},
	}
	records := []*kgo.Record{
		{Key: []byte("k"), Value: []byte("v")}, {Value: []byte("no key")}, {Key: []byte("tombstone")}, {},
		{Key: []byte{}, Value: []byte{}}, {Key: []byte("h"), Value: []byte("h"), Headers: headers},
	}
	for i := range 100 {
		text := bytes.Repeat(fmt.Appendf(nil, "some text %d ", i), 20)
		records = append(records, &kgo.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: text})
	}
	for i, record := range records {
		record.Timestamp = at(i)
	}
	return records
}

func randomRecord(size int) *kgo.Record {
	value := make([]byte, size)
	_, err := rand.Read(value)
	check(err)
	return &kgo.Record{Value: value, Timestamp: t0}
}

func create(topic string, partitions int32, replicas int16, configs map[string]*string) error {
	_, err := admin.CreateTopic(within(), partitions, replicas, configs, topic)
	return err
}

// newTopic creates a topic. The configs have the form "key=value".
func newTopic(name string, partitions int32, configs ...string) string {
	topic, table := run+"-"+name, map[string]*string{}
	for _, config := range configs {
		key, value, _ := strings.Cut(config, "=")
		table[key] = &value
	}
	check(create(topic, partitions, replicas, table))
	until(func() bool { // CreateTopics is answered before every broker knows the topic
		with, all := brokersWith(topic)
		return with == all
	})
	return topic
}

// brokersWith returns how many brokers know the topic, and how many brokers there are.
func brokersWith(topic string) (with, all int) {
	c := client()
	defer c.Close()
	metadata, err := admin.BrokerMetadata(within())
	check(err)
	for _, node := range metadata.Brokers.NodeIDs() {
		request := kmsg.NewPtrMetadataRequest()
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		request.Topics = append(request.Topics, asked)
		answer, err := c.Broker(int(node)).RetriableRequest(within(), request)
		check(err)
		if answer.(*kmsg.MetadataResponse).Topics[0].ErrorCode == 0 {
			with++
		}
	}
	return with, len(metadata.Brokers)
}

// send produces to partition 0 in order and returns the first error.
func send(topic string, records []*kgo.Record, options ...kgo.Opt) error {
	c := client(append([]kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20 * time.Millisecond),
	}, options...)...)
	defer c.Close()
	for _, record := range records {
		record.Topic = topic
	}
	return c.ProduceSync(within(), records...).FirstErr()
}

func reader(topic string, partition int32, offset kgo.Offset, options ...kgo.Opt) *kgo.Client {
	from := map[string]map[int32]kgo.Offset{topic: {partition: offset}}
	return client(append([]kgo.Opt{kgo.ConsumePartitions(from)}, options...)...)
}

func read(topic string, count int, partition int32, offset kgo.Offset, options ...kgo.Opt) []*kgo.Record {
	c, ctx := reader(topic, partition, offset, options...), within()
	defer c.Close()
	var records []*kgo.Record
	for len(records) < count {
		fetches := c.PollFetches(ctx)
		check(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	want(len(records) == count, "%d records read, not %d", len(records), count)
	return records
}

// describe formats a record as text in which null and empty differ.
func describe(offset int, r *kgo.Record) string {
	return fmt.Sprintf("offset %d at %d: %#v = %#v %#v", offset, r.Timestamp.UnixMilli(), r.Key, r.Value, r.Headers)
}

func same(found, expected []*kgo.Record, first int) {
	want(len(found) == len(expected), "%d records, not %d", len(found), len(expected))
	for i := range found {
		got, wanted := describe(int(found[i].Offset), found[i]), describe(first+i, expected[i])
		want(got == wanted, "record %d: %.300s is not %.300s", i, got, wanted)
	}
}

func start() kgo.Offset { return kgo.NewOffset().AtStart() }

// roundTrip sends the odd records and reads them back.
func roundTrip(topic string, options ...kgo.Opt) {
	records := oddRecords()
	check(send(topic, records, options...))
	same(read(topic, len(records), 0, start()), oddRecords(), 0)
}

// --- produce ---------------------------------------------------------------------------------------

func produceCases() []testCase {
	codecs := []struct {
		name  string
		codec kgo.CompressionCodec
	}{
		{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()},
		{"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()},
	}
	modes := []struct {
		name    string
		options []kgo.Opt
	}{
		{"acks=0", []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()}},
		{"acks=1", []kgo.Opt{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}},
		{"acks=all", []kgo.Opt{kgo.RequiredAcks(kgo.AllISRAcks()), kgo.DisableIdempotentWrite()}},
		{"idempotent", nil},
	}
	var cases []testCase
	for _, mode := range modes {
		for _, codec := range codecs {
			cases = append(cases, testCase{"produce " + mode.name + " " + codec.name, func() {
				topic := newTopic(strings.ReplaceAll("produce-"+mode.name+"-"+codec.name, "=", "-"), 1)
				roundTrip(topic, append(mode.options, kgo.ProducerBatchCompression(codec.codec))...)
			}})
		}
	}
	return append(cases,
		testCase{"produce idempotent, many batches, in order", manyBatches},
		testCase{"produce 900 KB, none", func() { big("none", kgo.NoCompression()) }},
		testCase{"produce 900 KB, zstd", func() { big("zstd", kgo.ZstdCompression()) }},
		testCase{"produce above message.max.bytes is refused", tooBig},
		testCase{"produce above the topic's max.message.bytes is refused", tooBigForTopic},
		testCase{"produce a day ahead is refused", fromTheFuture},
		testCase{"produce to a LogAppendTime topic", logAppendTime},
		testCase{"produce to a missing topic creates it", func() { roundTrip(run+"-auto", kgo.AllowAutoTopicCreation()) }},
		testCase{"produce by key over 6 partitions", byKey},
		testCase{"transactions commit and abort", transaction},
	)
}

func numbered(count, size int) []*kgo.Record {
	records := make([]*kgo.Record, count)
	for i := range records {
		records[i] = &kgo.Record{Key: fmt.Append(nil, i), Value: bytes.Repeat([]byte("x"), size), Timestamp: at(i % 1000)}
	}
	return records
}

func manyBatches() {
	topic := newTopic("many", 1)
	check(send(topic, numbered(5000, 100), kgo.ProducerBatchMaxBytes(8000), kgo.ProducerLinger(0)))
	same(read(topic, 5000, 0, start()), numbered(5000, 100), 0)
}

func big(name string, codec kgo.CompressionCodec) {
	topic, records := newTopic("big-"+name, 1), []*kgo.Record{randomRecord(900_000), randomRecord(900_000)}
	check(send(topic, records, kgo.ProducerBatchCompression(codec)))
	same(read(topic, 2, 0, start()), records, 0)
}

func tooBig() {
	topic := newTopic("too-big", 1)
	err := send(topic, []*kgo.Record{randomRecord(1_500_000)}, kgo.ProducerBatchMaxBytes(4_000_000))
	refused(kerr.MessageTooLarge, err)
	roundTrip(topic)
}

func tooBigForTopic() {
	topic := newTopic("small", 1, "max.message.bytes=2000")
	refused(kerr.MessageTooLarge, send(topic, []*kgo.Record{randomRecord(3000)}))
}

func fromTheFuture() {
	tomorrow := &kgo.Record{Value: []byte("v"), Timestamp: time.Now().Add(24 * time.Hour)}
	refused(kerr.InvalidTimestamp, send(newTopic("future", 1), []*kgo.Record{tomorrow}))
}

func logAppendTime() {
	topic, before := newTopic("append-time", 1, "message.timestamp.type=LogAppendTime"), time.Now().Add(-time.Second)
	check(send(topic, oddRecords()))
	for _, record := range read(topic, len(oddRecords()), 0, start()) {
		want(record.Attrs.TimestampType() == 1, "timestamp type %d", record.Attrs.TimestampType())
		want(record.Timestamp.After(before), "timestamp %v", record.Timestamp)
	}
}

func byKey() {
	topic, sent := newTopic("six", 6), map[int32][]*kgo.Record{}
	records := numbered(600, 10)
	check(send(topic, records, kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))))
	for _, record := range records {
		sent[record.Partition] = append(sent[record.Partition], record)
	}
	want(len(sent) == 6, "%d partitions used", len(sent))
	for partition, expected := range sent {
		same(read(topic, len(expected), partition, start()), expected, 0)
	}
}

func transaction() {
	topic := newTopic("transaction", 2)
	c := client(kgo.TransactionalID(run+"-transaction"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	for _, value := range []string{"first", "aborted", "last"} {
		check(c.BeginTransaction())
		for partition := int32(0); partition < 2; partition++ {
			check(c.ProduceSync(within(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr())
		}
		check(c.EndTransaction(within(), kgo.TransactionEndTry(value != "aborted")))
	}
	values := func(count int, level kgo.IsolationLevel, partition int32) (found string) {
		for _, record := range read(topic, count, partition, start(), kgo.FetchIsolationLevel(level)) {
			found += fmt.Sprintf("%d %s, ", record.Offset, record.Value)
		}
		return found
	}
	for partition := int32(0); partition < 2; partition++ {
		committed := values(2, kgo.ReadCommitted(), partition)
		want(committed == "0 first, 4 last, ", "committed: %s", committed)
		everything := values(3, kgo.ReadUncommitted(), partition)
		want(everything == "0 first, 2 aborted, 4 last, ", "everything: %s", everything)
	}
}

// --- consume ---------------------------------------------------------------------------------------

func consumeCases() []testCase {
	return []testCase{
		{"consume from the middle of a batch", func() { middle("none", kgo.NoCompression()) }},
		{"consume from the middle of a compressed batch", func() { middle("zstd", kgo.ZstdCompression()) }},
		{"consume from a time", fromTime},
		{"consume read_committed", readCommitted},
		{"consume with small fetches", smallFetches},
		{"consume 20 partitions at once, again and again", manyPartitions},
		{"consume at the end wakes up for a new record", tail},
		{"consume beyond the end is refused", outOfRange},
		{"offsets: earliest, latest, by time, max timestamp", offsets},
	}
}

func middle(name string, codec kgo.CompressionCodec) {
	topic := newTopic("middle-"+name, 1)
	check(send(topic, oddRecords(), kgo.ProducerBatchCompression(codec)))
	same(read(topic, len(oddRecords())-7, 0, kgo.NewOffset().At(7)), oddRecords()[7:], 7)
}

func fromTime() {
	topic := newTopic("from-time", 1)
	check(send(topic, oddRecords()))
	offset := kgo.NewOffset().AfterMilli(at(7).UnixMilli())
	same(read(topic, len(oddRecords())-7, 0, offset), oddRecords()[7:], 7)
}

func readCommitted() {
	topic := newTopic("committed", 1)
	check(send(topic, oddRecords()))
	found := read(topic, len(oddRecords()), 0, start(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	same(found, oddRecords(), 0)
}

func smallFetches() {
	topic := newTopic("small-fetches", 1)
	check(send(topic, numbered(60, 5000), kgo.ProducerBatchMaxBytes(16_000), kgo.ProducerBatchCompression(kgo.NoCompression())))
	found := read(topic, 60, 0, start(), kgo.FetchMaxBytes(1000), kgo.FetchMaxPartitionBytes(1000))
	same(found, numbered(60, 5000), 0)
}

// manyPartitions keeps one fetch session busy. Each round writes to another one of the twenty partitions.
func manyPartitions() {
	topic, from := newTopic("twenty", 20), map[int32]kgo.Offset{}
	for partition := range int32(20) {
		from[partition] = start()
	}
	c := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	defer c.Close()
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic))
	defer producer.Close()
	for i := range 60 {
		check(producer.ProduceSync(within(), &kgo.Record{Partition: int32(i*7) % 20, Value: fmt.Append(nil, i)}).FirstErr())
		fetches := c.PollFetches(within())
		check(fetches.Err())
		records := fetches.Records()
		want(len(records) == 1 && string(records[0].Value) == fmt.Sprint(i), "round %d: %v", i, records)
	}
}

func tail() {
	topic := newTopic("tail", 1)
	check(send(topic, oddRecords()))
	c := reader(topic, 0, kgo.NewOffset().At(106), kgo.FetchMaxWait(20*time.Second), kgo.FetchMinBytes(1))
	defer c.Close()
	quiet, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	want(len(c.PollFetches(quiet).Records()) == 0, "something old was read at the end")
	check(send(topic, []*kgo.Record{{Value: []byte("new"), Timestamp: t0}}))
	started := time.Now()
	records := c.PollFetches(within()).Records()
	want(len(records) == 1 && records[0].Offset == 106 && string(records[0].Value) == "new", "%v", records)
	want(time.Since(started) < 15*time.Second, "the long poll slept on")
}

func outOfRange() {
	topic := newTopic("range", 1)
	check(send(topic, oddRecords()))
	c := reader(topic, 0, kgo.NewOffset().At(1000), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	defer c.Close()
	refused(kerr.OffsetOutOfRange, c.PollFetches(within()).Err())
}

func offsets() {
	topic := newTopic("times", 1)
	for _, ms := range []int{0, 100, 200, 900, 300} {
		check(send(topic, []*kgo.Record{{Value: []byte("v"), Timestamp: t0.Add(time.Duration(ms) * time.Millisecond)}}))
	}
	offset := func(listed kadm.ListedOffsets, err error) kadm.ListedOffset {
		check(err)
		found, _ := listed.Lookup(topic, 0)
		check(found.Err)
		return found
	}
	want(offset(admin.ListStartOffsets(within(), topic)).Offset == 0, "start")
	want(offset(admin.ListEndOffsets(within(), topic)).Offset == 5, "end")
	want(offset(admin.ListCommittedOffsets(within(), topic)).Offset == 5, "last stable")
	latest := offset(admin.ListMaxTimestampOffsets(within(), topic))
	want(latest.Offset == 3 && latest.Timestamp == t0.UnixMilli()+900, "max timestamp: %v", latest)
	for ms, wanted := range map[int64]int64{0: 0, 100: 1, 101: 2, 201: 3, 900: 3, 901: 5} { // past all: the end
		found := offset(admin.ListOffsetsAfterMilli(within(), t0.UnixMilli()+ms, topic))
		want(found.Offset == wanted, "time %d: %v", ms, found)
	}
}

// attempt runs one case. If the case panics, it has failed, and the other cases still run.
func attempt(c testCase) (err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("%v", failure)
		}
	}()
	c.run()
	return nil
}

func main() {
	passed, failed := 0, 0
	for _, group := range [][]testCase{produceCases(), consumeCases(), adminCases()} {
		for _, c := range group {
			if err := attempt(c); err != nil {
				failed++
				fmt.Printf("FAIL go: %s: %v\n", c.name, err)
			} else {
				passed++
				fmt.Printf("ok   go: %s\n", c.name)
			}
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
