package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const sendTimeout = 10 * time.Second

// sender is the part of a producer that the driver uses.
type sender = rocketmq.Producer

func (d *driver) createTopic(p params, _ reply) error {
	client, err := admin.NewAdmin(
		admin.WithResolver(d.resolver()), admin.WithCredentials(credentials()))
	if err != nil {
		return err
	}
	defer client.Close()
	queues := p.number("queues", 4)
	return client.CreateTopic(context.Background(), admin.WithTopicCreate(p.Get("topic")),
		admin.WithBrokerAddrCreate(p.Get("broker")), admin.WithReadQueueNums(queues),
		admin.WithWriteQueueNums(queues))
}

// producer returns the started producer of a group; messages of one sharding key share a queue.
func (d *driver) producer(group string) (sender, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if started := d.producers[group]; started != nil {
		return started, nil
	}
	created, err := rocketmq.NewProducer(
		producer.WithNsResolver(d.resolver()),
		producer.WithCredentials(credentials()),
		producer.WithGroupName(group),
		producer.WithInstanceName("send-"+group),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	if err == nil {
		err = created.Start()
	}
	if err == nil {
		d.producers[group] = created
	}
	return created, err
}

func message(p params, i int) *primitive.Message {
	body, err := base64.StdEncoding.DecodeString(p.Get("body"))
	if err != nil {
		panic(err)
	}
	number := strconv.Itoa(i)
	if !p.flag("exact") {
		body = append(body, "#"+number...)
	}
	made := primitive.NewMessage(p.Get("topic"), body)
	if tags := p.Get("tags"); tags != "" {
		choices := strings.Split(tags, ",")
		made.WithTag(choices[i%len(choices)])
	}
	if keys := p.Get("keys"); keys != "" {
		made.WithKeys(strings.Split(strings.ReplaceAll(keys, "{i}", number), " "))
	}
	if key := p.Get("shard"); key != "" {
		made.WithShardingKey(key)
	}
	if level := p.number("level", 0); level != 0 {
		made.WithDelayTimeLevel(level)
	}
	for name, value := range p.startingWith("property.") {
		made.WithProperty(name, strings.ReplaceAll(value, "{i}", number))
	}
	return made
}

func sent(result *primitive.SendResult) event {
	return event{
		"status":      int(result.Status),
		"msgId":       result.MsgID,
		"offsetMsgId": result.OffsetMsgID,
		"queueId":     result.MessageQueue.QueueId,
		"queueOffset": result.QueueOffset,
	}
}

// send sends "count" messages in the mode sync, async, oneway or batch.
func (d *driver) send(p params, r reply) error {
	group, err := d.producer(p.text("group", "interop-producer"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	var messages []*primitive.Message
	for i := 0; i < p.number("count", 1); i++ {
		messages = append(messages, message(p, i))
	}
	switch mode := p.text("mode", "sync"); mode {
	case "batch":
		result, err := group.SendSync(ctx, messages...)
		if err != nil {
			return err
		}
		r.event("sent", sent(result))
	case "async":
		return sendAsync(ctx, group, messages, r)
	case "sync", "oneway":
		for _, each := range messages {
			if mode == "oneway" {
				if err := group.SendOneWay(ctx, each); err != nil {
					return err
				}
				continue
			}
			result, err := group.SendSync(ctx, each)
			if err != nil {
				return err
			}
			r.event("sent", sent(result))
		}
	default:
		return fmt.Errorf("unknown mode %s", mode)
	}
	return nil
}

func sendAsync(ctx context.Context, group sender, messages []*primitive.Message, r reply) error {
	var outstanding sync.WaitGroup
	var failure atomic.Value
	for _, each := range messages {
		outstanding.Add(1)
		err := group.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			defer outstanding.Done()
			if err != nil {
				failure.Store(err.Error())
				return
			}
			r.event("sent", sent(result))
		}, each)
		if err != nil {
			return err
		}
	}
	outstanding.Wait()
	if text := failure.Load(); text != nil {
		return fmt.Errorf("an asynchronous send failed: %v", text)
	}
	return nil
}

// request sends one message as a request and prints the reply.
func (d *driver) request(p params, r reply) error {
	group, err := d.producer(p.Get("group"))
	if err != nil {
		return err
	}
	ttl := time.Duration(p.number("ttl", 10_000)) * time.Millisecond
	answer, err := group.Request(context.Background(), ttl, message(p, 0))
	if err != nil {
		return err
	}
	r.event("reply", event{
		"body":       base64.StdEncoding.EncodeToString(answer.Body),
		"properties": answer.GetProperties(),
	})
	return nil
}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

// outcomes answers for the local transactions: the n-th check of a message gets the n-th answer.
type outcomes struct {
	reply   reply
	local   string
	answers []string
	mutex   sync.Mutex
	checks  map[string]int
}

func (o *outcomes) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return states[o.local]
}

func (o *outcomes) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	key := m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)
	o.checks[key]++
	answer := o.answers[min(o.checks[key], len(o.answers))-1]
	fields := seen(m)
	fields["number"] = o.checks[key]
	fields["answer"] = answer
	o.reply.event("check", fields)
	return states[answer]
}

// transaction starts a transaction producer and sends; checks are events until transaction_stop.
func (d *driver) transaction(p params, r reply) error {
	listener := &outcomes{
		reply:   r,
		local:   p.text("local", "UNKNOW"),
		answers: strings.Split(p.text("checks", "UNKNOW"), ","),
		checks:  map[string]int{},
	}
	group, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNsResolver(d.resolver()),
		producer.WithCredentials(credentials()),
		producer.WithGroupName(p.Get("group")),
		producer.WithInstanceName(fmt.Sprintf("transaction-%d", r.id)),
		producer.WithSendMsgTimeout(sendTimeout),
	)
	if err == nil {
		err = group.Start()
	}
	if err != nil {
		return err
	}
	d.keep(r.id, group.Shutdown)
	for i := 0; i < p.number("count", 1); i++ {
		result, err := group.SendMessageInTransaction(context.Background(), message(p, i))
		if err != nil {
			return err
		}
		fields := sent(result.SendResult)
		fields["localState"] = int(result.State)
		r.event("sent", fields)
	}
	return nil
}

func (d *driver) transactionStop(p params, r reply) error {
	return d.stop(p, r)
}
