// An idempotent producer with franz-go, like ../../java/Lost.java: `producer BOOTSTRAP TOPIC PARTITIONS PER_SECOND`.
//
// Sends 0, 1, 2 ... to the partitions in turns until its input ends. Prints a line for each record that is acknowledged
// or fails.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const unansweredMax = 200

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	topic, partitions, perSecond := os.Args[2], number(os.Args[3]), number(os.Args[4])
	stopping, unanswered := make(chan struct{}), make(chan struct{}, unansweredMax)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error also ends the input
		close(stopping)
	}()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(50*time.Millisecond),
	)
	if err != nil {
		panic(err)
	}
	sent, began := 0, time.Now()
	for ; ; sent++ {
		select {
		case <-stopping:
			if err := client.Flush(context.Background()); err != nil {
				panic(err)
			}
			fmt.Println("sent", sent, "left", len(unanswered))
			return
		case unanswered <- struct{}{}:
		}
		time.Sleep(time.Until(began.Add(time.Duration(sent) * time.Second / time.Duration(perSecond))))
		value := strconv.Itoa(sent)
		record := &kgo.Record{Partition: int32(sent % partitions), Value: []byte(value)}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				fmt.Println("failed", value, err)
			} else {
				fmt.Println("acked", value)
			}
			<-unanswered
		})
	}
}
