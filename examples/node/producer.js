// node producer.js HOST:PORT TOPIC 'JSON object'
"use strict";

const { randomBytes } = require("node:crypto");
const { Client, sleep } = require("./pulse.js");

// A UUID of version 7: it begins with the time, so that jobs sort by when they were made.
function newJobId() {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  const hex = bytes.toString("hex");
  return hex.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}

async function main([address, topic, payload]) {
  const client = new Client(address);
  const id = newJobId();
  await client.insist(client.jobs, "SubmitJobs", { jobs: [{ id, topic, payload }] }, 30);
  for (;;) {
    const job = await client.insist(client.jobs, "GetJob", { jobId: id }, 30);
    if (["JOB_STATUS_SUCCEEDED", "JOB_STATUS_DEAD_LETTERED", "JOB_STATUS_CANCELLED"].includes(job.status)) {
      console.log(JSON.stringify({ id, status: job.status, result: job.result, error: job.lastError }));
      break;
    }
    await sleep(0.05);
  }
  client.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
