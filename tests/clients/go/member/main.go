// A member of a group with franz-go. Its output is that of Kafka's VerifiableConsumer: see `../../groups/groups.py`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	bootstrap = flag.String("bootstrap-server", "", "")
	group     = flag.String("group-id", "", "")
	topic     = flag.String("topic", "", "")
	pattern   = flag.String("pattern", "", "")
	instance  = flag.String("group-instance-id", "", "")
	protocol  = flag.String("group-protocol", "classic", "")
	strategy  = flag.String("assignment-strategy", "range", "")
	session   = flag.Int("session-timeout", 6000, "")
	saying    sync.Mutex
)

type fields map[string]any

func say(name string, more fields) {
	all := fields{"name": name}
	for key, value := range more {
		all[key] = value
	}
	line, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(line))
}

func tell(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, of map[string][]int32) {
		all := []fields{}
		for topic, partitions := range of {
			for _, partition := range partitions {
				all = append(all, fields{"topic": topic, "partition": partition})
			}
		}
		say(event, fields{"partitions": all})
	}
}

func options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*bootstrap, ",")...),
		kgo.ConsumerGroup(*group),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.SessionTimeout(time.Duration(*session) * time.Millisecond),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(tell("partitions_assigned")),
		kgo.OnPartitionsRevoked(tell("partitions_revoked")),
		kgo.OnPartitionsLost(tell("partitions_revoked")),
	}
	if *protocol == "consumer" {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	if *instance != "" {
		opts = append(opts, kgo.InstanceID(*instance))
	}
	if *strategy == "cooperative-sticky" {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	} else {
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	}
	if *pattern != "" {
		return append(opts, kgo.ConsumeRegex(), kgo.ConsumeTopics(*pattern))
	}
	return append(opts, kgo.ConsumeTopics(*topic))
}

// consumed prints the records. Those of a partition are in order.
func consumed(fetches kgo.Fetches) {
	all := []fields{}
	fetches.EachPartition(func(of kgo.FetchTopicPartition) {
		if len(of.Records) == 0 {
			return
		}
		first, last := of.Records[0].Offset, of.Records[len(of.Records)-1].Offset
		all = append(all, fields{"topic": of.Topic, "partition": of.Partition, "count": len(of.Records), "minOffset": first, "maxOffset": last})
	})
	say("records_consumed", fields{"count": fetches.NumRecords(), "partitions": all})
}

// commit commits the records that were read from partitions which this member still owns. After a rebalance another
// member reads the rest again. A failed commit is repeated in the next round.
func commit(client *kgo.Client) {
	all := []fields{}
	for topic, partitions := range client.UncommittedOffsets() {
		for partition, offset := range partitions {
			all = append(all, fields{"topic": topic, "partition": partition, "offset": offset.Offset})
		}
	}
	if len(all) > 0 {
		err := client.CommitUncommittedOffsets(context.Background())
		say("offsets_committed", fields{"success": err == nil, "offsets": all})
	}
}

func main() {
	flag.Parse()
	client, err := kgo.NewClient(options()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	running, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	say("startup_complete", nil)
	for running.Err() == nil {
		polling, cancel := context.WithTimeout(running, 100*time.Millisecond)
		fetches := client.PollRecords(polling, 500)
		cancel()
		if fetches.NumRecords() > 0 {
			consumed(fetches)
		}
		commit(client)
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	say("shutdown_complete", nil)
}
