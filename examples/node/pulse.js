// What a worker and a producer share: the contract, loaded, and calls as promises.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const PROTO = process.env.PULSE_PROTO || path.join(__dirname, "../../proto/pulse/v1/pulse.proto");

// Lease tokens are 64 bits wide: as text, no digit gets lost.
const definition = protoLoader.loadSync(PROTO, { longs: String, enums: String, defaults: true });
const { pulse } = grpc.loadPackageDefinition(definition);

const TRANSIENT = new Set([
  grpc.status.UNAVAILABLE,
  grpc.status.DEADLINE_EXCEEDED,
  grpc.status.ABORTED,
  grpc.status.UNKNOWN,
]);

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const jittered = (seconds) => seconds * (0.8 + 0.4 * Math.random());

// A token goes over TLS, or stays on this machine. PULSED_TLS_CA turns TLS on: a file with the
// authority of the server's certificate, or "system" for those that Node trusts.
function credentialsFor(address, token) {
  const ca = process.env.PULSED_TLS_CA;
  if (ca) return grpc.credentials.createSsl(ca === "system" ? null : fs.readFileSync(ca));
  if (token && !/^(localhost|127(\.\d+){3}|\[::1\]):\d+$/.test(address)) {
    throw new Error(`the token would go to ${address} in the clear: set PULSED_TLS_CA`);
  }
  return grpc.credentials.createInsecure();
}

class Client {
  constructor(address) {
    const token = process.env.PULSED_TOKEN;
    const credentials = credentialsFor(address, token);
    const options = { "grpc.keepalive_time_ms": 10000, "grpc.keepalive_timeout_ms": 5000 };
    this.jobs = new pulse.v1.JobService(address, credentials, options);
    this.work = new pulse.v1.WorkService(address, credentials, options);
    this.metadata = new grpc.Metadata();
    if (token) this.metadata.set("authorization", `Bearer ${token}`);
  }

  // One call; fails after ten seconds without an answer.
  call(service, method, request) {
    const deadline = new Date(Date.now() + 10000);
    return new Promise((resolve, reject) => {
      service[method](request, this.metadata, { deadline }, (error, answer) =>
        error ? reject(error) : resolve(answer),
      );
    });
  }

  // The same call again and again while no server answers: none of them does its work twice.
  async insist(service, method, request, patience = Infinity) {
    const giveUpAt = Date.now() + patience * 1000;
    for (let wait = 0.1; ; wait = Math.min(wait * 2, 5)) {
      try {
        return await this.call(service, method, request);
      } catch (error) {
        if (!TRANSIENT.has(error.code) || Date.now() > giveUpAt) throw error;
        await sleep(jittered(wait));
      }
    }
  }

  close() {
    this.jobs.close();
    this.work.close();
  }
}

module.exports = { Client, TRANSIENT, grpc, jittered, sleep };
