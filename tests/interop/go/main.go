// Command driver is a stock RocketMQ client for Go that is driven by text, so that one process
// serves many tests. It speaks as tests/interop/java does.
//
// Usage: driver NAMESRV, with INTEROP_ACCESS_KEY and INTEROP_SECRET_KEY where it is to sign. It reads
// lines "NUMBER COMMAND QUERY" from its input, runs them side by side, and ends when the input does.
// QUERY is a URL query string. Each answer is a JSON line with the number of its command; the last
// line for a number has the event "done" or "error".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type event map[string]any

// reply writes the JSON lines that answer one command.
type reply struct {
	id int64
}

var output sync.Mutex

func (r reply) event(name string, fields event) {
	// The tests look for lines that begin with the number.
	line := []byte(fmt.Sprintf(`{"id":%d,"event":%q`, r.id, name))
	if len(fields) > 0 {
		rest, err := json.Marshal(fields)
		if err != nil {
			panic(err)
		}
		line = append(append(line, ','), rest[1:]...)
	} else {
		line = append(line, '}')
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// params are the parameters of one command.
type params struct {
	url.Values
}

func (p params) text(name, otherwise string) string {
	if p.Has(name) {
		return p.Get(name)
	}
	return otherwise
}

func (p params) number(name string, otherwise int) int {
	number, err := strconv.Atoi(p.text(name, strconv.Itoa(otherwise)))
	if err != nil {
		panic(fmt.Sprintf("parameter %s is no number", name))
	}
	return number
}

func (p params) flag(name string) bool {
	return p.Get(name) == "true"
}

func (p params) startingWith(prefix string) map[string]string {
	found := map[string]string{}
	for name := range p.Values {
		if strings.HasPrefix(name, prefix) {
			found[strings.TrimPrefix(name, prefix)] = p.Get(name)
		}
	}
	return found
}

type command func(d *driver, p params, r reply) error

var commands = map[string]command{
	"create_topic":     (*driver).createTopic,
	"send":             (*driver).send,
	"transaction":      (*driver).transaction,
	"transaction_stop": (*driver).transactionStop,
	"request":          (*driver).request,
	"push":             (*driver).push,
	"stop":             (*driver).stop,
}

// driver holds what runs.
type driver struct {
	namesrv   []string
	mutex     sync.Mutex
	producers map[string]sender
	stoppable map[int64]func() error
}

func (d *driver) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(d.namesrv)
}

// credentials are empty where nothing is to be signed.
func credentials() primitive.Credentials {
	return primitive.Credentials{
		AccessKey: os.Getenv("INTEROP_ACCESS_KEY"), SecretKey: os.Getenv("INTEROP_SECRET_KEY"),
	}
}

func (d *driver) keep(id int64, stop func() error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.stoppable[id] = stop
}

// stop ends what the command with the number "handle" started.
func (d *driver) stop(p params, _ reply) error {
	handle := int64(p.number("handle", -1))
	d.mutex.Lock()
	stop := d.stoppable[handle]
	delete(d.stoppable, handle)
	d.mutex.Unlock()
	if stop == nil {
		return fmt.Errorf("nothing runs as %d", handle)
	}
	return stop()
}

func (d *driver) run(id int64, name, query string) {
	r := reply{id}
	defer func() {
		if failure := recover(); failure != nil {
			r.event("error", event{"kind": "panic", "text": fmt.Sprint(failure)})
		}
	}()
	values, err := url.ParseQuery(query)
	if err == nil {
		if run := commands[name]; run != nil {
			err = run(d, params{values}, r)
		} else {
			err = fmt.Errorf("unknown command %s", name)
		}
	}
	if err != nil {
		r.event("error", event{"kind": fmt.Sprintf("%T", err), "text": err.Error()})
		return
	}
	r.event("done", nil)
}

func main() {
	rlog.SetLogLevel("error")
	d := &driver{
		namesrv:   []string{os.Args[1]},
		producers: map[string]sender{},
		stoppable: map[int64]func() error{},
	}
	reply{0}.event("ready", nil)
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<24)
	for input.Scan() {
		words := append(strings.SplitN(input.Text(), " ", 3), "", "")
		id, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			panic(err)
		}
		go d.run(id, words[1], words[2])
	}
}
