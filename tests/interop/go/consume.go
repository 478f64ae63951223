package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// seen is what the tests learn of a message.
func seen(m *primitive.MessageExt) event {
	return event{
		"topic":                     m.Topic,
		"queueId":                   m.Queue.QueueId,
		"queueOffset":               m.QueueOffset,
		"msgId":                     m.MsgId,
		"offsetMsgId":               m.OffsetMsgId,
		"keys":                      m.GetKeys(),
		"tags":                      m.GetTags(),
		"properties":                m.GetProperties(),
		"body":                      base64.StdEncoding.EncodeToString(m.Body),
		"bodySize":                  len(m.Body),
		"sysFlag":                   m.SysFlag,
		"bornTimestamp":             m.BornTimestamp,
		"storeTimestamp":            m.StoreTimestamp,
		"reconsumeTimes":            m.ReconsumeTimes,
		"preparedTransactionOffset": m.PreparedTransactionOffset,
	}
}

// listener prints each message and fails it as often as it was told.
type listener struct {
	reply      reply
	orderly    bool
	failures   int
	failKeys   string
	answer     func(*primitive.MessageExt) error
	mutex      sync.Mutex
	deliveries map[string]int
}

func (l *listener) consume(
	_ context.Context, messages ...*primitive.MessageExt,
) (consumer.ConsumeResult, error) {
	consumed := true
	for _, each := range messages {
		l.mutex.Lock()
		l.deliveries[each.MsgId]++
		failed := l.deliveries[each.MsgId] <= l.failures
		l.mutex.Unlock()
		if l.failKeys != "" && !strings.Contains(","+l.failKeys+",", ","+each.GetKeys()+",") {
			failed = false
		}
		fields := seen(each)
		fields["failed"] = failed
		fields["receivedTimestamp"] = time.Now().UnixMilli()
		l.reply.event("message", fields)
		consumed = consumed && !failed
		if l.answer != nil {
			if err := l.answer(each); err != nil {
				l.reply.event("refused", event{"text": err.Error()})
			}
		}
	}
	switch {
	case consumed:
		return consumer.ConsumeSuccess, nil
	case l.orderly:
		return consumer.SuspendCurrentQueueAMoment, nil
	default:
		return consumer.ConsumeRetryLater, nil
	}
}

// push starts a push consumer until "stop"; with "answer" it replies "re:" and the body.
func (d *driver) push(p params, r reply) error {
	model := consumer.Clustering
	if p.Get("model") == "BROADCASTING" {
		model = consumer.BroadCasting
	}
	options := []consumer.Option{
		consumer.WithNsResolver(d.resolver()),
		consumer.WithCredentials(credentials()),
		consumer.WithGroupName(p.Get("group")),
		consumer.WithInstance(p.text("instance", fmt.Sprintf("push-%d", r.id))),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(p.flag("orderly")),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
	}
	if p.Has("maxReconsume") {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(p.number("maxReconsume", 0))))
	}
	group, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	l := &listener{
		reply:      r,
		orderly:    p.flag("orderly"),
		failures:   p.number("fail", 0),
		failKeys:   p.Get("failKeys"),
		deliveries: map[string]int{},
	}
	if p.flag("answer") {
		if l.answer, err = d.replier(p.Get("group")+"-producer", r); err != nil {
			return err
		}
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: p.text("expression", "*")}
	if p.Has("sql") {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: p.Get("sql")}
	}
	if err := group.Subscribe(p.Get("topic"), selector, l.consume); err != nil {
		return err
	}
	if err := group.Start(); err != nil {
		return err
	}
	d.keep(r.id, group.Shutdown)
	return nil
}

func (d *driver) replier(name string, r reply) (func(*primitive.MessageExt) error, error) {
	group, err := d.producer(name)
	if err != nil {
		return nil, err
	}
	return func(request *primitive.MessageExt) error {
		// The library takes the second argument for properties instead of the body.
		answer, err := consumer.CreateReplyMessage(request, nil)
		if err != nil {
			return err
		}
		answer.Body = append([]byte("re:"), request.Body...)
		result, err := group.SendSync(context.Background(), answer)
		if err == nil {
			r.event("replied", event{"status": int(result.Status)})
		}
		return err
	}, nil
}
