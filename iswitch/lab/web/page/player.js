// Plays the frames of a trace at any speed.

const at = (id) => document.getElementById(id);
const LASTS = 20; // seconds for the whole trace, at the speed at the beginning

/** Return the last frame that is not later than a time. */
function frameAt(times, time) {
  let low = 0, high = times.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (times[middle] <= time) low = middle;
    else high = middle - 1;
  }
  return low;
}

const written = (speed) => `${speed >= 10 ? speed.toFixed(0) : speed.toPrecision(2)}x`;
const seconds = (time) => (time < 1 ? `${(1000 * time).toFixed(2)} ms` : `${time.toFixed(2)} s`);

/** Show a trace, and let it be played. */
export function play({ times }, draw) {
  const end = times.at(-1);
  let time = 0, wanted = 0, shown = -1, busy = false, playing = false, before = 0;
  const speed = () => 10 ** Number(at("speed").value);

  /** Go to a time, and show the frame that is wanted then. */
  function go(to, frame = frameAt(times, to)) {
    time = to;
    wanted = frame;
    return show();
  }

  async function show() {
    at("time").textContent = `${seconds(time)} of ${seconds(end)}`;
    at("position").value = wanted;
    at("position").setAttribute("aria-valuetext", seconds(time));
    if (busy || wanted === shown) return;
    busy = true;
    const frame = wanted;
    try {
      const answer = await fetch(`frames/${frame}`);
      if (!answer.ok) throw new Error(answer.statusText);
      draw(await answer.json());
      document.body.dataset.frame = shown = frame;
    } catch {
      at("state").textContent = "iswitch web does not answer";
      stop();
      return;
    } finally {
      busy = false;
    }
    if (wanted !== shown) show();
  }

  function stop() {
    playing = false;
    at("play").textContent = "Play";
  }

  function tick(now) {
    if (!playing) return;
    go(Math.min(end, time + ((now - before) / 1000) * speed()));
    before = now;
    if (time >= end) stop();
    else requestAnimationFrame(tick);
  }

  function turn() {
    if (playing) return stop();
    playing = true;
    if (time >= end) time = 0;
    at("play").textContent = "Stop";
    before = performance.now();
    requestAnimationFrame(tick);
  }

  function step(by) {
    stop();
    const frame = Math.max(0, Math.min(times.length - 1, wanted + by));
    go(times[frame], frame);
  }

  function told() {
    at("pace").textContent = written(speed());
  }

  at("player").hidden = false;
  at("player").addEventListener("submit", (event) => event.preventDefault());
  at("position").max = times.length - 1;
  at("speed").value = Math.max(-5, Math.min(3, Math.log10(Math.max(end, 1e-6) / LASTS)));
  at("play").addEventListener("click", turn);
  at("back").addEventListener("click", () => step(-1));
  at("on").addEventListener("click", () => step(1));
  at("position").addEventListener("input", () => {
    stop();
    const frame = Number(at("position").value);
    go(times[frame], frame);
  });
  at("speed").addEventListener("input", told);
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("button, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " ") { event.preventDefault(); turn(); }
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  told();
  show();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) turn();
}
