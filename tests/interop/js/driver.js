// The stock JavaScript client, driven by text.
//
// It speaks as tests/interop/java does: it reads lines "NUMBER COMMAND QUERY", runs them side by
// side and ends with its input. Each answer is a line of JSON with the number of its command; the
// last line for a number has the event "done" or "error".
//
// Usage: node driver.js NAMESRV HOME, with INTEROP_ACCESS_KEY and INTEROP_SECRET_KEY where it is to sign.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [namesrv, home] = process.argv.slice(2);
process.env.HOME = home;

// Its logger writes to the output, which is ours.
const logger = Object.fromEntries(
  ['debug', 'info', 'warn', 'error'].map(name => [name, (...words) => console.error(name, ...words)])
);
const common = {
  httpclient: {}, nameSrv: namesrv, clientIP: '127.0.0.1', logger,
  accessKeyId: process.env.INTEROP_ACCESS_KEY || '', accessKeySecret: process.env.INTEROP_SECRET_KEY || '',
  pollNameServerInteval: 500, heartbeatBrokerInterval: 500, rebalanceInterval: 500,
  persistConsumerOffsetInterval: 500,
};
const consumers = new Map();
let producer;

function event(id, name, fields) {
  process.stdout.write(JSON.stringify({ id, event: name, ...fields }) + '\n');
}

function message(params, i) {
  const tags = (params.tags || '').split(',');
  const made = new Message(params.topic, tags[i % tags.length], params.body + (params.count ? `#${i}` : ''));
  if (params.keys) made.keys = [params.keys.replace('{i}', i)];
  if (params.level) made.delayTimeLevel = Number(params.level);
  for (const [name, value] of Object.entries(params)) {
    if (name.startsWith('property.')) made.properties[name.slice(9)] = value.replace('{i}', i);
  }
  return made;
}

async function send(id, params) {
  for (let i = 0; i < Number(params.count || 1); i++) {
    const result = await producer.send(message(params, i));
    event(id, 'sent', {
      status: result.sendStatus === 'SEND_OK' ? 0 : 1, msgId: result.msgId,
      queueId: Number(result.messageQueue.queueId), queueOffset: Number(result.queueOffset),
    });
  }
}

async function push(id, params) {
  const failing = new Set((params.failKeys || '').split(',').filter(key => key));
  const failures = new Map();
  const consumer = new Consumer({
    ...common, consumerGroup: params.group, isBroadcast: params.model === 'BROADCASTING',
  });
  // It tells of a retry topic that is not there yet, and looks again.
  consumer.on('error', error => logger.error(error.message));
  const selector = params.sql ? { expressionType: 'SQL92', subString: params.sql } : params.expression || '*';
  consumer.subscribe(params.topic, selector, async got => {
    event(id, 'message', {
      topic: got.topic, queueId: got.queueId, queueOffset: Number(got.queueOffset), msgId: got.msgId,
      body: got.body.toString('base64'), tags: got.tags || '', keys: got.keys || '',
      reconsumeTimes: got.reconsumeTimes, bornTimestamp: Number(got.bornTimestamp),
      storeTimestamp: Number(got.storeTimestamp), colour: got.properties.colour || '',
    });
    const count = failures.get(got.keys) || 0;
    if (failing.has(got.keys) && count < Number(params.fail || 0)) {
      failures.set(got.keys, count + 1);
      throw new Error(`${got.keys} fails as the test wants`);
    }
  });
  await consumer.ready();
  consumers.set(id, consumer);
}

async function stop(id, params) {
  const handle = Number(params.handle);
  await consumers.get(handle).close();
  consumers.delete(handle);
}

async function run(id, command, query) {
  try {
    await { send, push, stop }[command](id, Object.fromEntries(new URLSearchParams(query)));
    event(id, 'done');
  } catch (error) {
    event(id, 'error', { kind: error.name, code: error.code, text: error.message });
  }
}

async function main() {
  producer = new Producer({ ...common, producerGroup: 'PG-js' });
  producer.on('error', error => logger.error(error.message));
  await producer.ready();
  event(0, 'ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [number, command, query] = line.split(' ');
    run(Number(number), command, query || '');
  }
  process.exit(0);
}

main();
