// SPDX-License-Identifier: Apache-2.0
// Checks a receipt: whether the received texts, in order, are the released ones (docs/receipts.md).

const LANE = new TextEncoder().encode("answer");

export const canCheck = () => globalThis.crypto?.subtle !== undefined;

// Whether `texts`, the contents of the token events, have this digest; null for an unknown algorithm.
export async function fitsDigest(texts, digest) {
  if (digest?.algorithm !== "sha256-chain-1") return null;
  const frames = texts.filter((text) => text !== "");
  let value = await hash(new TextEncoder().encode("lockgate receipt 1"));
  for (const text of frames) value = await hash(join(value, new TextEncoder().encode(text)));
  return frames.length === digest.frames && toHex(value) === digest.value;
}

async function hash(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

function join(value, text) {
  const laneLength = new DataView(new ArrayBuffer(4));
  const textLength = new DataView(new ArrayBuffer(8));
  laneLength.setUint32(0, LANE.length);
  textLength.setBigUint64(0, BigInt(text.length));
  return concat([value, new Uint8Array(laneLength.buffer), LANE, new Uint8Array(textLength.buffer), text]);
}

function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
