// SPDX-License-Identifier: BSD-2-Clause
// values.js PORT SIZE...: each value goes to the server and comes back intact, by ioredis; then a few of its habits.
'use strict';
const Redis = require('ioredis');
const crypto = require('crypto');
const assert = require('assert');

const [port, ...sizes] = process.argv.slice(2).map(Number);
const options = {host: process.env.VKR_HOST, port, retryStrategy: null, maxRetriesPerRequest: 0};

async function values(client) {
	for (const size of sizes) {
		const unit = crypto.createHash('sha512').update(String(size)).digest();
		const value = Buffer.alloc(size, unit);
		assert.strictEqual(await client.set(`node:${size}`, value), 'OK');
		const got = await client.getBuffer(`node:${size}`);
		assert.ok(value.equals(got), `${size}: ${got.length} bytes came back, differing`);
		console.log(size, 'ok');
	}
}

async function habits(client) {
	const pipeline = client.pipeline();
	for (let i = 0; i < 5000; i++)
		pipeline.incr('node:counter');
	const results = await pipeline.exec();
	assert.strictEqual(results[4999][1], 5000);
	const many = await Promise.all(Array.from({length: 1000}, (_, i) => client.set(`node:many:${i}`, i)));
	assert.ok(many.every((r) => r === 'OK'));

	const subscriber = new Redis(options);
	await subscriber.subscribe('node:channel');
	const seen = new Promise((resolve) => {
		let n = 0;
		subscriber.on('message', () => ++n === 500 && resolve(n));
	});
	for (let i = 0; i < 500; i++)
		client.publish('node:channel', `message ${i}`);
	assert.strictEqual(await seen, 500);
	const stream = client.scanStream({match: 'node:many:*', count: 100});
	let keys = 0;
	for await (const batch of stream)
		keys += batch.length;
	assert.ok(keys >= 1000);
	await subscriber.quit();
	console.log('habits ok');
}

(async () => {
	const client = new Redis(options);
	client.on('error', (e) => {
		console.error(e);
		process.exit(1);
	});
	await values(client);
	await habits(client);
	await client.quit();
})();
