// Jobs, members, links and switches as tables, with the figures of `iswitch top`.

import { bytes, count, faint, html, mbit, ms, rate, share } from "./format.js";

const MOST = 200; // rows

/** Fill a place with a table. `columns`: [name, is a number, row => text or [text, class]]. */
function fill(place, rows, columns, none) {
  if (!rows.length) {
    place.replaceChildren(faint(none));
    return;
  }
  const head = html("tr", {}, ...columns.map(([name, number]) => html("th", { scope: "col", class: number ? "n" : "" }, name)));
  const body = rows.slice(0, MOST).map((row) => html("tr", {}, ...columns.map(([name, number, of]) => {
    const said = of(row);
    const [text, kind] = Array.isArray(said) ? said : [said, ""];
    return html("td", { class: `${number ? "n" : ""} ${kind}`.trim(), "data-column": name }, text);
  })));
  const more = rows.length > MOST ? faint(`and ${rows.length - MOST} more`) : null;
  place.replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...body)), ...(more ? [more] : []));
}

const known = (value, write) => (value === null || value === undefined ? "-" : write(value));

export function drawTables(places, scene) {
  fill(places.jobs, scene.jobs, [
    ["job", true, (one) => String(one.job)],
    ["state", false, (one) => [one.state.replace("_", " "), one.state === "running" ? "" : "notable"]],
    ["workers", true, (one) => (one.expected ? `${one.workers}/${one.expected}` : String(one.workers))],
    ["H", true, (one) => `${one.threshold}${one.threshold_set ? "*" : ""}`],
    ["round", true, (one) => count(one.round)],
    ["rounds/s", true, (one) => one.rate.toFixed(1)],
    ["first-last", true, (one) => known(one.spread, ms)],
    ["longest", true, (one) => known(one.longest, ms)],
    ["memory", true, (one) => bytes(one.reserved)],
    ["slots open", true, (one) => known(one.slots, (slots) => `${count(slots.open)}/${count(slots.limit)}`)],
    ["vector", false, (one) => known(one.shape, (shape) => `${count(shape.elements)} ${shape.dtype} ${shape.op}`)],
    ["keyed", false, (one) => (one.keyed ? "yes" : "no")],
  ], "no job");
  fill(places.members, scene.members, [
    ["member", false, (one) => [one.type === "worker" ? one.name : `${one.type} ${one.name}`, ["bad", "notable", ""][one.severity]]],
    ["rank", true, (one) => known(one.rank, String)],
    ["job", true, (one) => String(one.job)],
    ["at", false, (one) => one.switch],
    ["Mbit/s", true, (one) => mbit(one.bits)],
    ["last in", true, (one) => [share(one.last), one.late ? "notable" : ""]],
    ["late by", true, (one) => [one.behind ? ms(one.behind) : "-", one.late ? "notable" : ""]],
    ["missing", true, (one) => known(one.missing, count)],
    ["again/s", true, (one) => [count(one.again), one.lossy ? "notable" : ""]],
    ["lease", true, (one) => [`${one.lease.toFixed(0)} s`, one.silent === null ? "" : "bad"]],
    ["address", false, (one) => `${one.host}:${one.port}`],
  ], "no members");
  const lost = (way) => (one) => [share(one[`lost_${way}`], 1), one.lossy.includes(way) ? "bad" : ""];
  fill(places.links, scene.links, [
    ["link", false, (one) => (one.name === "udp" ? `${one.switch} udp` : one.name)],
    ["to", false, (one) => known(one.peer, String)],
    ["Mbit/s in", true, (one) => mbit(one.in)],
    ["out", true, (one) => mbit(one.out)],
    ["load", true, (one) => known(one.load, (load) => share(load))],
    ["lost in", true, lost("in")],
    ["lost out", true, lost("out")],
    ["again/s", true, (one) => count(one.again)],
  ], "no links");
  fill(places.switches, [...scene.switches, ...Object.entries(scene.gone).map(([name, gone]) => ({ name, gone }))], [
    ["switch", false, (one) => [one.name, one.gone === undefined ? "" : "bad"]],
    ["listening", false, (one) => (one.gone === undefined ? one.listening : [`no answer for ${one.gone.toFixed(0)} s`, "bad"])],
    ["memory", true, (one) => known(one.memory, (memory) => `${bytes(memory.reserved)} of ${bytes(memory.limit)}`)],
    ["drops/s", false, (one) => known(one.drops, (drops) => Object.entries(drops).map(([why, often]) => `${why} ${rate(often)}`).join(", ") || "none")],
  ], "no switch answers");
}
