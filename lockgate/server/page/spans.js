// SPDX-License-Identifier: Apache-2.0
// Texts as code points: splits them, finds the spans over a piece, and maps findings to places in the released text.
// Does not use the page.

export const toPoints = (text) => Array.from(text);

// Splits the text where a span begins or ends and at `cuts`. Each piece is {start, end, text, over}; `over` are the
// spans that cover it. Positions count from `base`.
export function splitText(points, spans, cuts = [], base = 0) {
  const end = base + points.length;
  const inside = (place) => Math.min(Math.max(place, base), end);
  const edges = new Set([base, end, ...cuts.map(inside)]);
  for (const span of spans) edges.add(inside(span.start)).add(inside(span.end));
  const places = [...edges].sort((one, other) => one - other);
  const pieces = [];
  for (let index = 0; index + 1 < places.length; index += 1) {
    const [from, to] = [places[index], places[index + 1]];
    const over = spans.filter((span) => span.start < to && from < span.end);
    pieces.push({ start: from, end: to, text: points.slice(from - base, to - base).join(""), over });
  }
  return pieces;
}

// Maps spans of the model's text to the released text. `frame` is {start, end, outcome}, `said` the released text,
// `original` the model's text or null if it is not known. Returns {spans, keptEnd}: the spans in positions of `said`,
// and where the fallback for withheld text begins.
export function placeSpans(frame, said, original, spans) {
  const own = clip(spans, frame);
  if (frame.outcome === "blocked") return placeBlocked(frame, said, original, own);
  const length = frame.end - frame.start;
  if (said.length === length) return { spans: own, keptEnd: said.length };
  const groups = merge(own);
  const places = original === null ? guess(groups, length, said.length) : align(groups, original, said);
  const moved = own.map((span) => move(span, groups, places));
  return { spans: moved.filter((span) => span !== null), keptEnd: said.length };
}

function clip(spans, frame) {
  const length = frame.end - frame.start;
  return spans
    .map((span) => ({ ...span, start: Math.max(span.start - frame.start, 0), end: span.end - frame.start }))
    .map((span) => ({ ...span, end: Math.min(span.end, length) }))
    .filter((span) => span.start < span.end);
}

// A stopped answer keeps the text before the finding, a blocked one nothing; then follows the fallback.
function placeBlocked(frame, said, original, own) {
  if (original === null) return { spans: [], keptEnd: Math.min(frame.kept ?? 0, said.length) };
  const starts = own.map((span) => span.start).sort((one, other) => other - one);
  const keeps = (end) => end > 0 && startsWith(said, original.slice(0, end), 0);
  const keptEnd = starts.find(keeps) ?? 0;
  return { spans: own.filter((span) => span.end <= keptEnd), keptEnd };
}

function merge(spans) {
  const groups = [];
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    const last = groups.at(-1);
    if (last && span.start <= last.end) last.end = Math.max(last.end, span.end);
    else groups.push({ start: span.start, end: span.end });
  }
  return groups;
}

// Text between groups is released unchanged, so the text between these parts in `said` replaces the groups.
function align(groups, original, said) {
  const places = [];
  let cursor = groups.length > 0 ? groups[0].start : 0;
  for (const [index, group] of groups.entries()) {
    const next = groups[index + 1];
    const plain = original.slice(group.end, next ? next.start : original.length);
    const found = next ? search(said, plain, cursor) : said.length - plain.length;
    const end = found < cursor ? cursor : found;
    places.push({ start: cursor, end });
    cursor = end + plain.length;
  }
  return places;
}

// Without the model's text only the lengths are known: returns one mark from the first finding to the last.
function guess(groups, length, saidLength) {
  if (groups.length === 0) return [];
  const first = groups[0].start;
  const end = Math.max(saidLength - (length - groups.at(-1).end), first);
  return groups.map(() => ({ start: first, end }));
}

function move(span, groups, places) {
  const index = groups.findIndex((group) => group.start <= span.start && span.end <= group.end);
  const place = places[index];
  return place && place.start < place.end ? { ...span, ...place } : null;
}

function startsWith(points, part, from) {
  return from + part.length <= points.length && part.every((point, index) => points[from + index] === point);
}

function search(points, part, from) {
  for (let place = from; place + part.length <= points.length; place += 1) {
    if (startsWith(points, part, place)) return place;
  }
  return -1;
}

// Finds citations such as [owner/dataset] of one of the paths: {start, end, path}, brackets included.
export function findCitations(points, paths) {
  const found = [];
  for (let start = points.indexOf("["); start >= 0; start = points.indexOf("[", start + 1)) {
    const end = points.indexOf("]", start);
    const path = end < 0 ? "" : points.slice(start + 1, end).join("").trim();
    if (paths.has(path)) found.push({ start, end: end + 1, path });
  }
  return found;
}
