// The browser's half of live_chart.py: keeps one Plotly plot alive in the element that Streamlit mounted, its data in
// plain arrays. Every refresh changes those arrays; every draw hands Plotly the whole figure (Plotly.react finds what
// changed). So there is one path for points appended and points rewritten, for resets, themes and sizes.

const DRAWING = "Drawing the chart...";
const LEGEND_CLICK_MS = 350; // Plotly waits 300 ms for a second click before it acts on the first
const VIEW_DEBOUNCE_MS = 150;
const [RESYNC_PAUSE_MS, PARK_MS] = [1000, 2000]; // the first: a page that doesn't answer must not be asked in a loop
// Drawing may take this share of a core, for each chart that grows: a training job may need the others.
const DRAW_SHARE = navigator.hardwareConcurrency > 4 ? 0.2 : 0.06;
const [NARROW_PX, TWO_COLUMNS] = [480, { entrywidth: 0.49, entrywidthmode: "fraction", font: { size: 10 } }];
const ZLIB = 0x78; // the first byte of such a stream
const BUTTONS = [["zoom2d", "pan2d", "autoScale2d", "toImage"]];
const CONFIG = { displaylogo: false, doubleClick: "autosize", modeBarButtons: BUTTONS, scrollZoom: true };
const NARROW = { ...CONFIG, displayModeBar: false };
const BARE = { ...NARROW, scrollZoom: false };
const NUMBERS = { f8: Float64Array, f4: Float32Array, i4: Int32Array };
const SAVED_AS = { png: 2, svg: 1 }; // format of a picture -> its pixels for each one of the figure
const AXIS = /^[xy]axis\d*/;
// Keys as in Perfetto: how each changes the window in x, as shares of its width around the pointer's place in it.
const KEYS = { w: (at) => [at / 3, -(1 - at) / 3], s: (at) => [-at / 2, (1 - at) / 2] };
Object.assign(KEYS, { a: () => [-0.2, -0.2], d: () => [0.2, 0.2] });
const OF_TIME = /^time since the run began/; // the axis of charts that share a cursor
const charts = new WeakMap(); // the element Streamlit gave -> its chart
const drawn = new Set(); // every chart that is on the page
const parked = new Map(); // key -> chart whose element is gone, perhaps for a moment

export default function mount(component, plotlyUrl) {
  const root = component.parentElement;
  if (!root.isConnected) return () => {};
  const end = component.data.indexOf(10); // a line feed
  const key = new TextDecoder().decode(component.data.subarray(0, end));
  if (!charts.has(root)) charts.set(root, parked.get(key) ?? new LiveChart(key, plotlyUrl));
  charts.get(root).open(component.data.subarray(end + 1), component);
  return () => {
    // Also called for a refresh that was overtaken by the next one: then the element is still in the page.
    if (root.isConnected) return;
    charts.get(root)?.park();
    charts.delete(root);
  };
}

// One script for each page, however many charts ask for it.
function loadPlotly(src) {
  window.vitprofPlotly ??= new Promise((onload, onerror) => {
    document.head.append(Object.assign(document.createElement("script"), { src, onload, onerror }));
  });
  return window.vitprofPlotly;
}

class LiveChart {
  held = null; // {run, revision} of what the arrays hold
  traces = [];
  layout = {};
  uids = new Map();
  ranges = {}; // axis name -> [from, to] that the user chose; such an axis doesn't follow the data
  dataRevision = 0; // tells Plotly.react that arrays changed
  draws = 0;
  quietUntil = 0;
  nextDraw = 0; // for new data; what the user does is drawn at once
  inSight = true;
  resyncAskedAt = -Infinity;
  gd = Object.assign(document.createElement("div"), { style: "position: relative" }); // the cursor is placed in it
  listeners = new AbortController();
  sizes = new ResizeObserver(() => this.schedule());
  sight = new IntersectionObserver((changes) => {
    this.inSight = changes.at(-1).isIntersecting;
    this.schedule();
  });

  constructor(key, plotlyUrl) {
    this.key = key;
    this.sizes.observe(this.gd);
    this.sight.observe(this.gd);
    // A draw in the middle of a drag would pull the axes back under the pointer, one between two clicks could take the
    // second one's target away: wait until it is over.
    const options = { capture: true, signal: this.listeners.signal };
    this.gd.addEventListener("pointerdown", () => (this.pointerDown = true), options);
    for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => this.release(), options);
    this.gd.addEventListener("pointermove", (event) => this.point(event), options);
    // also told of elements within, such as those that a draw replaces under the pointer
    this.gd.addEventListener("pointerleave", ({ target }) => target === this.gd && this.point(null), options);
    this.gd.addEventListener("wheel", (event) => this.turn(event), { ...options, passive: true });
    window.addEventListener("keydown", (event) => this.press(event), options);
    drawn.add(this);
    // Plotly has 1.5 MB: after a deep link its place was empty for two seconds.
    this.note = Object.assign(document.createElement("div"), { className: "vitprof-drawing", textContent: DRAWING });
    this.note.style.cssText = "position: absolute; inset: 0; display: grid; place-content: center";
    this.gd.append(this.note);
    loadPlotly(plotlyUrl).then(
      () => this.schedule(),
      () => (this.gd.textContent = `This chart cannot be drawn: ${plotlyUrl} could not be loaded.`),
    );
  }

  park() {
    // Where a fragment's refresh is due during a rerun of the whole page, Streamlit 1.67 can drop the rerun's part of
    // it: its elements vanish and come back with the refresh. The plot waits for that with all its state.
    parked.get(this.key)?.destroy();
    parked.set(this.key, this);
    this.parkTimer = setTimeout(() => this.destroy(), PARK_MS);
    this.reported = undefined; // Streamlit may have dropped the state with the element: say it again
  }

  destroy() {
    if (parked.get(this.key) === this) parked.delete(this.key);
    drawn.delete(this);
    for (const timer of [this.parkTimer, this.viewTimer, this.resyncTimer, this.drawTimer]) clearTimeout(timer);
    this.listeners.abort();
    this.sizes.disconnect();
    this.sight.disconnect();
    window.Plotly?.purge(this.gd);
    this.held = null; // nothing is drawn any more
    this.gd.remove();
  }

  open(bytes, component) {
    // A large update is a zlib stream, which only opens asynchronously: what follows it waits, so that none overtakes.
    this.attach(component.parentElement);
    if (bytes[0] !== ZLIB && !this.inbox) return this.receive(JSON.parse(new TextDecoder().decode(bytes)), component);
    const opened = (this.inbox ?? Promise.resolve()).then(async () => {
      const update = await unpacked(bytes);
      if (this.inbox === opened) this.inbox = null;
      this.receive(update, component); // also if the element was replaced meanwhile: the plot goes on in the new one
    });
    this.inbox = opened;
  }

  attach(parent) {
    if (this.gd.parentElement === parent) return;
    clearTimeout(this.parkTimer);
    parked.delete(this.key);
    parent.append(this.gd);
  }

  receive(update, component) {
    this.component = component; // always the newest: its setStateValue knows the fragment as it is now
    this.gd.setAttribute("role", "figure"); // not an image: it has buttons
    if (update.alt !== undefined) this.gd.setAttribute("aria-label", update.alt);
    Object.assign(this, { picks: update.picks, bare: update.bare, silent: update.silent });
    if (!update.grows) this.nextDraw = 0; // what is there now stays
    this.height = update.height;
    this.gd.style.height = `${this.height}px`;
    if (this.held?.revision !== update.revision) {
      if (update.figure) this.reset(update);
      else if (update.base === this.held?.revision && update.run === this.held.run) this.append(update);
      else this.askForAll(update.revision);
    }
    if (this.held && !this.viewTimer) this.reportView();
    const theme = readTheme(this.gd);
    if (JSON.stringify(theme) !== JSON.stringify(this.theme)) this.dirty = true;
    this.theme = theme;
    this.schedule();
  }

  reset({ run, revision, figure, view }) {
    if (!this.held) {
      this.reported = JSON.stringify(view);
      if (view) this.ranges = { xaxis: view }; // a new chart, but Python still has the state
    } else if (this.held.run !== run) this.ranges = {};
    this.traces = figure.data.map((trace, index) => {
      const nth = figure.data.slice(0, index).filter(({ name }) => name === trace.name).length;
      const decoded = Object.entries(trace).map(([key, value]) => [key, decode(value)]);
      return { uid: this.uid(`${nth} ${trace.name}`), ...Object.fromEntries(decoded) };
    });
    this.layout = figure.layout;
    this.held = { run, revision };
    clearTimeout(this.resyncTimer);
    this.changed();
  }

  uid(name) {
    // By its uid Plotly recognises a hidden trace even when others come or go. Plotly also makes a CSS selector of it,
    // so a name won't do.
    if (!this.uids.has(name)) this.uids.set(name, `t${this.uids.size}`);
    return this.uids.get(name);
  }

  append({ run, revision, traces = [], layout }) {
    this.held = { run, revision };
    traces.forEach(({ keep, ...columns }, index) => {
      for (const [name, values] of Object.entries(columns)) {
        const held = this.traces[index][name];
        const added = decode(values);
        if (held.length !== keep || added.length) this.changed();
        held.length = keep;
        for (const value of added) held.push(value);
      }
    });
    if (layout) Object.assign(this, { layout, dirty: true });
  }

  changed() {
    this.dirty = true;
    this.dataRevision += 1;
  }

  askForAll(revision) {
    const pause = this.resyncAskedAt + RESYNC_PAUSE_MS - performance.now();
    clearTimeout(this.resyncTimer);
    if (pause > 0) {
      // later, unless it has come by then: for a run that has ended no other refresh would ask
      this.resyncTimer = setTimeout(() => this.askForAll(revision), pause);
      return;
    }
    this.resyncAskedAt = performance.now();
    this.component.setStateValue("resync", revision);
  }

  release() {
    if (!this.pointerDown) return;
    this.pointerDown = false;
    this.wait();
  }

  schedule() {
    // A hidden tab gets no frames: all that arrives meanwhile is drawn in one go when it is shown.
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  async draw() {
    const width = this.gd.clientWidth;
    const busy = this.drawing || this.pointerDown || performance.now() < this.quietUntil;
    if (!window.Plotly || !this.held || !width || busy) return; // each of these schedules a draw when it ends
    if (!this.dirty && width === this.width) return;
    if (this.draws && !this.silent && width === this.width) {
      if (!this.inSight) return; // drawn when it comes into sight
      const early = this.nextDraw - performance.now();
      if (early > 0) {
        clearTimeout(this.drawTimer);
        this.drawTimer = setTimeout(() => this.schedule(), early);
        return;
      }
    }
    const began = performance.now();
    Object.assign(this, { dirty: false, drawing: true, width });
    try {
      // Copies, because Plotly writes what the user does into the figure it was given: only with the figure as the
      // server meant it can Plotly (uirevision) tell the two apart and keep the user's.
      const data = this.traces.map((trace) => ({ ...trace }));
      await window.Plotly.react(this.gd, data, this.fullLayout(), this.bare ? BARE : width < NARROW_PX ? NARROW : CONFIG);
    } finally {
      this.drawing = false;
    }
    if (!this.held) return; // destroyed meanwhile
    this.nextDraw = performance.now() + (performance.now() - began) / DRAW_SHARE;
    // Plotly sends these for what the user does, and not for Plotly.react, so a draw can't come back as a zoom.
    this.note.remove();
    if (!this.draws++) {
      this.gd.on("plotly_relayout", (change) => this.relayout(change));
      this.gd.on("plotly_click", ({ points }) => this.pick(points[0]));
    }
    this.schedule();
  }

  fullLayout() {
    const layout = structuredClone(this.layout);
    for (const axis of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => AXIS.test(key))])) {
      // A new one for each draw: the ranges are kept here, and one that the server gave must be able to come back.
      layout[axis] = { ...layout[axis], uirevision: `${this.draws}` };
      if (this.ranges[axis]) Object.assign(layout[axis], { range: [...this.ranges[axis]], autorange: false });
    }
    const { theme, width, height, held, dataRevision } = this;
    if (width < NARROW_PX) this.makeNarrow(layout);
    return { ...layout, template: { layout: theme }, width, height, uirevision: held.run, datarevision: dataRevision };
  }

  makeNarrow(layout) {
    // On a phone the entries of a legend would be below each other, and bars would have no room beside their texts.
    const entries = this.traces.filter((trace) => trace.showlegend !== false).length;
    const inPlot = layout.legend?.orientation === "h" && layout.legend.xref !== "container";
    if (entries > 3 && inPlot) Object.assign(layout.legend, TWO_COLUMNS);
    if (layout.xaxis.nticks) layout.xaxis.nticks = 3;
    if (layout.yaxis2?.ticktext) layout.yaxis2.showticklabels = false;
  }

  relayout(change) {
    const axes = Object.keys(change).flatMap((key) => AXIS.exec(key)?.[0] ?? []);
    if (!axes.length) return;
    for (const axis of axes) {
      const { autorange, range } = this.gd.layout[axis] ?? {};
      if (autorange === true || !range) delete this.ranges[axis];
      else this.ranges[axis] = [...range];
    }
    Object.assign(this, { dirty: true, nextDraw: 0 }); // a range that the server gave may have to come back
    this.schedule();
    clearTimeout(this.viewTimer);
    this.viewTimer = setTimeout(() => this.reportView(), VIEW_DEBOUNCE_MS);
  }

  turn(event) {
    // Without Ctrl the wheel scrolls the page, which it could not do over a chart that zooms.
    if (!event.ctrlKey && !event.metaKey) return event.stopPropagation();
    this.wait();
  }

  wait() {
    this.quietUntil = performance.now() + LEGEND_CLICK_MS;
    setTimeout(() => this.schedule(), LEGEND_CLICK_MS + 10);
  }

  point(event) {
    // Where the pointer is on the x axis, for keys, and for the cursor that all charts over time share.
    const axis = this.gd._fullLayout?.xaxis;
    const px = event && axis ? event.clientX - this.gd.getBoundingClientRect().left - axis._offset : NaN;
    this.pointed = px >= 0 && px <= axis?._length ? px / axis._length : null;
    if (!this.overTime()) return;
    for (const chart of drawn) chart.showCursor(this.pointed === null ? null : axis.p2l(px));
  }

  overTime() {
    return OF_TIME.test(this.layout.xaxis?.title?.text ?? "");
  }

  showCursor(x) {
    const axis = this.gd._fullLayout?.xaxis;
    const px = x === null || !axis || !this.overTime() ? NaN : axis.l2p(x);
    if (!this.cursor) {
      this.cursor = Object.assign(document.createElement("div"), { className: "vitprof-cursor" });
      const style = "position:absolute;top:0;bottom:0;border-left:1px dotted currentColor;pointer-events:none";
      this.cursor.style.cssText = style;
    }
    if (!this.cursor.isConnected) this.gd.append(this.cursor);
    this.cursor.hidden = !(px >= 0 && px <= axis?._length);
    if (!this.cursor.hidden) this.cursor.style.left = `${axis._offset + px}px`;
  }

  press(event) {
    const change = KEYS[event.key?.toLowerCase()]; // a browser that fills in a field sends events without one
    const typing = event.target.closest?.("input, textarea, select, [contenteditable=true]");
    if (!change || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if ((this.pointed ?? null) === null || this.bare) return;
    const [from, to] = this.gd._fullLayout.xaxis.range;
    const [left, right] = change(this.pointed).map((share) => share * (to - from));
    window.Plotly.relayout(this.gd, { "xaxis.range": [from + left, to + right] });
  }

  pick(point) {
    if (!this.picks || !point) return;
    const { curveNumber: trace, x, customdata: data } = point;
    this.component.setTriggerValue("picked", { trace, x, data });
  }

  reportView() {
    this.viewTimer = null;
    if (this.silent) return;
    const axis = Object.keys(this.ranges).find((name) => name.startsWith("x"));
    const view = axis ? this.ranges[axis].map(Number) : null;
    if (JSON.stringify(view) === this.reported) return;
    this.reported = JSON.stringify(view);
    this.component.setStateValue("view", view);
  }
}

const pictures = new WeakMap(); // the element Streamlit gave -> its picture

// A picture to take away (live_chart.picture): an image that scales with the page, and buttons that save it at its own
// size. Plotly makes both here in the browser.
export function picture(component, plotlyUrl) {
  const root = component.parentElement;
  if (!root.isConnected) return () => {};
  if (!pictures.has(root)) pictures.set(root, new Picture(root, plotlyUrl));
  const shown = pictures.get(root);
  unpacked(component.data.subarray(component.data.indexOf(10) + 1)).then((update) => shown.receive(update));
  return () => {
    if (!root.isConnected) shown.sizes.disconnect();
  };
}

class Picture {
  image = new Image();
  sizes = new ResizeObserver(() => this.draw());

  constructor(root, plotlyUrl) {
    this.root = Object.assign(document.createElement("div"), { className: "vitprof-picture" });
    const buttons = Object.entries(SAVED_AS).map(([format, scale]) => {
      const words = { type: "button", textContent: format.toUpperCase(), onclick: () => this.save(format, scale) };
      const button = Object.assign(document.createElement("button"), words);
      button.setAttribute("aria-label", `Save the picture as ${words.textContent}`);
      return button;
    });
    this.root.append(this.image, ...buttons);
    root.append(this.root);
    this.sizes.observe(this.root);
    this.plotly = loadPlotly(plotlyUrl);
    this.plotly.catch(() => (this.root.textContent = `This picture cannot be drawn: ${plotlyUrl} could not be loaded.`));
  }

  receive(update) {
    this.update = update;
    this.image.alt = update.alt;
    this.draw();
  }

  async draw() {
    const width = this.root.clientWidth;
    if (!this.update || !width) return;
    const size = width < NARROW_PX ? "narrow" : "wide";
    const drawn = JSON.stringify([size, readTheme(this.root), this.update]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const url = await this.made(size, { format: "svg" });
    if (drawn !== this.drawn) return; // another one is wanted meanwhile
    Object.assign(this.image, { src: url, width: this.update[size].layout.width, height: this.update[size].layout.height });
  }

  async made(size, options) {
    await this.plotly;
    const { data, layout } = this.update[size];
    const traces = data.map((trace) => Object.fromEntries(Object.entries(trace).map(([k, v]) => [k, decode(v)])));
    const figure = { data: traces, layout: { ...structuredClone(layout), template: { layout: readTheme(this.root) } } };
    return window.Plotly.toImage(figure, { width: layout.width, height: layout.height, ...options });
  }

  async save(format, scale) {
    const href = await this.made("wide", { format, scale });
    Object.assign(document.createElement("a"), { href, download: `${this.update.name}.${format}` }).click();
  }
}

async function unpacked(bytes) {
  if (bytes[0] !== ZLIB) return JSON.parse(new TextDecoder().decode(bytes));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function decode(value) {
  if (!value?.bdata || !(value.dtype in NUMBERS)) return value; // Plotly decodes all others
  const { buffer } = Uint8Array.from(atob(value.bdata), (char) => char.charCodeAt(0));
  const numbers = Array.from(new NUMBERS[value.dtype](buffer));
  const [rows, size] = (value.shape ?? "").split(",").map(Number);
  return size ? Array.from({ length: rows }, (_, row) => numbers.slice(row * size, (row + 1) * size)) : numbers;
}

function readTheme(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(`--st-${name}`).trim() || undefined;
  const [color, border, page] = [read("text-color"), read("border-color"), read("background-color")];
  const font = { color, family: read("font") };
  const gridcolor = read("border-color-light") ?? border;
  const axis = { gridcolor, linecolor: border, zerolinecolor: border, tickcolor: border, automargin: true };
  return {
    paper_bgcolor: page, // not transparent: Plotly would assume white behind its labels and the saved image
    plot_bgcolor: page,
    font,
    title: { font: { size: 16, weight: 600 } },
    colorway: read("chart-categorical-colors")?.split(/,(?![^(]*\))/),
    hoverlabel: { bgcolor: read("secondary-background-color"), bordercolor: border, font },
    margin: { l: 8, r: 8, t: 28, b: 8 },
    modebar: { bgcolor: page, color: read("gray-text-color") ?? border, activecolor: read("primary-color") },
    xaxis: axis,
    yaxis: { ...axis, ticklabelstandoff: 6 },
  };
}
