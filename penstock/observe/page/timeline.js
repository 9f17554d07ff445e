// The timeline: a lane for the model and one per worker, and below them how many batches were ready, or
// rates, batch sizes and ages of a live stream.
(function (page) {
  'use strict';

  const {data, element, number, rate, duration} = page;
  const $ = (id) => document.getElementById(id);
  const KINDS = [
    // css variable, what it is called; in the order of TraceKind
    null,
    ['--user', 'making batches'],
    ['--ticket', 'waiting for a ticket'],
    ['--slot', 'waiting for memory'],
    ['--wait', data.live ? 'model waits for messages' : 'model waits for a batch'],
    ['--step', 'training step'],
    ['--copy', 'copy to the device'],
    ['--wait', 'device waits for a copy'],
    ['--step', 'step on the device'],
    ['--event', 'worker replaced'],
    ['--event', 'error'],
  ];
  const MAKING = 1;
  const NO_TICKET = 2;
  const STEP = 5;
  const COPY = 6;
  const DEVICE_STEP = 8;
  const RESTART = 9;  // this kind and those after it are moments

  // Each column of pixels is filled to the share of its time that each kind took. So events too short
  // to be seen still add up to their share, and a zoomed-in ticket is a solid block.
  const lanes = [{name: 'model', events: data.consumer_events, consumer: true}]
    .concat(data.devices.map((device) => ({name: device.name, events: device.events, device: true})))
    .concat(data.workers.map((worker) => ({name: worker.name, events: worker.events, consumer: false})));
  const many = lanes.length > 20;
  const LANE = many ? 13 : 26;
  const GAP = many ? 3 : 8;
  const AXIS = 22;
  const DEPTH = 64;
  // Charts below the lanes: each a name, bars from a time to another, and the text of a height.
  const charts = data.live ? live_charts() : data.depth.length ? [depth_chart()] : [];
  const height = AXIS + lanes.length * (LANE + GAP) + GAP + charts.length * (DEPTH + GAP);
  const canvas = $('canvas');
  const context = canvas.getContext('2d');
  let full = [0, 1];
  let view = [0, 1];

  function depth_chart() {
    const at = data.depth;
    const most = Math.max(data.queue_size, 1, ...at.map((sample) => sample[1]));
    return {
      name: 'batches ready', most: most, line: data.queue_size, text: 'max_queue_size ' + data.queue_size,
      bars: at.map(([from, depth], i) => [from, i + 1 < at.length ? at[i + 1][0] : from, depth]),
    };
  }

  function live_charts() {
    const intervals = data.live.history;
    // Until the next interval begins: a pause shows as a low rate.
    const last = intervals.length - 1;
    const usual = last > 0 ? (intervals[last][0] - intervals[0][0]) / last : 10e3;
    const end = (i) => (i < last ? intervals[i + 1][0] : Math.max(intervals[i][1], intervals[i][0] + usual));
    const chart = (name, value, text) => {
      const bars = intervals.map((interval, i) => [interval[0], end(i), value(interval, end(i) - interval[0])]);
      const most = Math.max(...bars.map((bar) => bar[2]));
      return {name: name, most: most || 1, line: most, text: text(most), bars: bars};
    };
    if (intervals.length === 0) return [];
    return [
      chart('messages/s', (interval, span) => interval[3] / span * 1e6, (most) => rate(most) + ' a second'),
      chart('messages a batch', (interval) => interval[3] / interval[2], (most) => rate(most)),
      chart('oldest message', (interval) => interval[6], (most) => duration(most)),
    ];
  }

  function find_extent() {
    let first = Infinity;
    let last = -Infinity;
    lanes.forEach((lane) => lane.events.forEach((event) => {
      first = Math.min(first, event[1]);
      last = Math.max(last, event[1] + event[2]);
    }));
    if (first > last) {
      first = 0;
      last = 1;
    }
    full = [first, Math.max(last, first + 1)];
    view = full.slice();
  }

  function lane_top(i) {
    return AXIS + GAP / 2 + i * (LANE + GAP) + (i > 0 ? GAP : 0);
  }

  function chart_bottom(i) {
    return height - GAP / 2 - (charts.length - 1 - i) * (DEPTH + GAP);
  }

  function fill_lanes() {
    let bottom = 0;
    const place = (name, top, size, className) => {
      const label = element('li', className, name);
      label.title = name;
      label.style.marginTop = (top - bottom) + 'px';
      label.style.height = label.style.lineHeight = size + 'px';
      if (many) label.style.fontSize = '10.5px';
      bottom = top + size;
      $('lanes').append(label);
    };
    lanes.forEach((lane, i) => place(lane.name, lane_top(i), LANE, lane.consumer ? 'consumer' : ''));
    charts.forEach((chart, i) => place(chart.name, chart_bottom(i) - DEPTH, 18, ''));
    const seen = new Set();
    lanes.forEach((lane) => lane.events.forEach((event) => seen.add(event[0])));
    [4, STEP, COPY, 7, DEVICE_STEP, MAKING, NO_TICKET, 3, RESTART, RESTART + 1].filter((kind) => seen.has(kind)).forEach((kind) => {
      const item = element('li');
      const swatch = element('span', 'swatch');
      swatch.style.background = 'var(' + KINDS[kind][0] + ')';
      item.append(swatch, document.createTextNode(KINDS[kind][1]));
      $('legend').append(item);
    });
  }

  // The ring of a lane holds its latest events only.
  function note_what_is_gone() {
    const late = lanes.some((lane) => lane.events.length > 3000 && lane.events[0][1] - full[0] > (full[1] - full[0]) / 50);
    $('gone').hidden = !late;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      kinds: KINDS.map((kind) => kind && read(kind[0])),
      lane: read('--lane'), line: read('--line'), soft: read('--soft'), depth: read('--depth'), card: read('--card'), wait: read('--wait'),
    };
  }

  function draw_lane(lane, top, width, colour) {
    context.fillStyle = colour.lane;
    context.fillRect(0, top, width, LANE);
    const scale = width / (view[1] - view[0]);
    const shares = new Float32Array(width * RESTART);
    const marks = [];
    const edges = [];
    let drawn = 0;
    lane.events.forEach((event) => {
      const [kind, begin, span, active] = event;
      if (begin + span < view[0] || begin > view[1]) return;
      drawn += 1;
      if (kind >= RESTART) {
        marks.push((begin - view[0]) * scale);
        return;
      }
      const x0 = (begin - view[0]) * scale;
      const x1 = (begin + span - view[0]) * scale;
      const weight = span > 0 ? active / span : 0;
      const last = Math.min(width - 1, Math.floor(x1));
      for (let x = Math.max(0, Math.floor(x0)); x <= last; x += 1) {
        shares[x * RESTART + kind] += (Math.min(x1, x + 1) - Math.max(x0, x)) * weight;
      }
      if (x1 - x0 > 8 && [MAKING, STEP, COPY, DEVICE_STEP].includes(kind)) edges.push([x0, x1, event]);
    });
    for (let kind = 1; kind < RESTART; kind += 1) {
      context.fillStyle = colour.kinds[kind];
      let run = 0;
      let y0 = -1;
      let y1 = -1;
      for (let x = 0; x <= width; x += 1) {
        let low = 0;
        let high = 0;
        if (x < width) {
          for (let below = 1; below < kind; below += 1) low += shares[x * RESTART + below];
          high = Math.min(1, low + shares[x * RESTART + kind]);
        }
        const a0 = Math.round((1 - high) * LANE * 2) / 2;
        const a1 = high > low ? Math.round((1 - low) * LANE * 2) / 2 : a0;
        if (a0 !== y0 || a1 !== y1) {
          if (y1 > y0) context.fillRect(run, top + y0, x - run, y1 - y0);
          run = x;
          y0 = a0;
          y1 = a1;
        }
      }
    }
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    edges.forEach(([x0, x1, event]) => {
      context.fillStyle = colour.card;
      context.fillRect(Math.round(x0), top, 1, LANE);
      const text = lane.device ? String(event[5]) : event[4] + ' / ' + event[5];
      if (!many && x1 - x0 > context.measureText(text).width + 14 && event[6] === 1) {
        context.fillText(text, Math.max(x0, 0) + 7, top + LANE / 2 + 1);
      }
    });
    context.fillStyle = colour.kinds[RESTART];
    marks.forEach((x) => {
      context.beginPath();
      context.moveTo(x - 5, top - 3);
      context.lineTo(x + 5, top - 3);
      context.lineTo(x, top + 6);
      context.fill();
      context.fillRect(x - 0.5, top, 1, LANE);
    });
    return drawn;
  }

  function draw_axis(width, colour) {
    const span = view[1] - view[0];
    const rough = span / Math.max(2, width / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || rough;
    const unit = step >= 1e6 ? [1e6, ' s'] : step >= 1e3 ? [1e3, ' ms'] : [1, ' \u00b5s'];
    const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'top';
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      const x = Math.round((t - view[0]) / span * width);
      context.fillStyle = colour.line;
      context.fillRect(x, AXIS - 5, 1, height - AXIS + 5);
      context.fillStyle = colour.soft;
      const text = (t / unit[0]).toFixed(digits) + unit[1];
      const wide = context.measureText(text).width;
      context.fillText(text, Math.max(0, Math.min(width - wide, x - wide / 2)), 2);
    }
  }

  function draw_chart(chart, bottom, width, colour) {
    const x_of = (t) => (t - view[0]) / (view[1] - view[0]) * width;
    const y_of = (value) => bottom - value / chart.most * (DEPTH - 17);
    context.fillStyle = colour.lane;
    context.fillRect(0, bottom - DEPTH, width, DEPTH);
    context.fillStyle = colour.depth;
    chart.bars.forEach(([begin, end, value]) => {
      // Whole pixels, or the seams between samples would show.
      const from = Math.max(0, Math.round(x_of(begin)));
      const to = Math.min(width, end > begin ? Math.round(x_of(end)) : from + 1);
      if (to > from) context.fillRect(from, y_of(value), to - from, bottom - y_of(value));
    });
    if (chart.line) {
      context.fillStyle = colour.soft;
      context.fillRect(0, Math.round(y_of(chart.line)), width, 1);
      context.font = '11px system-ui, sans-serif';
      context.textBaseline = 'top';
      context.fillText(chart.text, 6, Math.round(y_of(chart.line)) - 13);
    }
  }

  function draw() {
    const width = Math.max(50, Math.floor($('stage').clientWidth));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + 'px';
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const colour = colours();
    draw_axis(width, colour);
    let drawn = 0;
    lanes.forEach((lane, i) => {
      drawn += draw_lane(lane, lane_top(i), width, colour);
    });
    charts.forEach((chart, i) => draw_chart(chart, chart_bottom(i), width, colour));
    canvas.dataset.lanes = lanes.length;
    canvas.dataset.events = drawn;
  }

  // ---- looking around -----------------------------------------------------------------------
  let pending = false;
  function show(from, to) {
    const shortest = 2;  // microseconds
    const span = Math.min(Math.max(to - from, shortest), full[1] - full[0]);
    const start = Math.min(Math.max((from + to - span) / 2, full[0]), full[1] - span);
    view = [start, start + span];
    if (!pending) {
      pending = true;
      requestAnimationFrame(() => {
        pending = false;
        draw();
      });
    }
  }
  function time_at(x) {
    return view[0] + x / $('stage').clientWidth * (view[1] - view[0]);
  }
  function zoom(factor, around) {
    const centre = around === undefined ? (view[0] + view[1]) / 2 : around;
    show(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
  }
  function move(share) {
    const by = share * (view[1] - view[0]);
    show(view[0] + by, view[1] + by);
  }

  function event_at(x, y) {
    const i = lanes.findIndex((lane, n) => y >= lane_top(n) - GAP / 2 && y < lane_top(n) + LANE + GAP / 2);
    if (i < 0) return null;
    const t = time_at(x);
    const slack = (view[1] - view[0]) / $('stage').clientWidth * 3;
    let best = null;
    let distance = Infinity;
    lanes[i].events.forEach((event) => {
      const far = Math.max(event[1] - t, t - event[1] - event[2], 0);
      const better = far < distance || (far === distance && (best === null || event[2] < best[2]));
      if (far <= slack && better) {
        best = event;
        distance = far;
      }
    });
    return best && [lanes[i], best];
  }

  function describe([lane, event]) {
    const [kind, begin, span, active, epoch, step, count, part] = event;
    const lines = [lane.name + ': ' + (KINDS[kind] ? KINDS[kind][1] : data.kinds[kind])];
    if (kind < RESTART) lines.push(duration(span) + ' from ' + duration(begin));
    else lines.push('at ' + duration(begin));
    if (lane.device) lines.push('batch ' + event[5] + ', by the clock of the device');
    else if (kind !== NO_TICKET) lines.push('epoch ' + epoch + ', step ' + step + (part ? ', part ' + part : ''));
    if (count > 1) lines.push(number(count) + ' short pieces, ' + duration(active) + ' together');
    return lines.join('\n');
  }

  function hover(x, y) {
    const tip = $('tip');
    const found = event_at(x, y);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = describe(found);
    const limit = $('stage').clientWidth - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(x + 14, limit)) + 'px';
    tip.style.top = (y + 18) + 'px';
  }

  function listen() {
    let drag = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener('pointerdown', (event) => {
      drag = {from: at(event)[0], to: at(event)[0], moving: event.shiftKey, view: view.slice()};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => {
      const [x, y] = at(event);
      if (!drag) {
        hover(x, y);
        return;
      }
      drag.to = x;
      $('tip').hidden = true;
      if (drag.moving) {
        const by = (drag.from - x) / $('stage').clientWidth * (drag.view[1] - drag.view[0]);
        show(drag.view[0] + by, drag.view[1] + by);
      } else {
        $('selection').hidden = false;
        $('selection').style.left = Math.min(drag.from, x) + 'px';
        $('selection').style.width = Math.abs(drag.from - x) + 'px';
      }
    });
    const release = (zooming) => {
      const done = drag;
      drag = null;
      $('selection').hidden = true;
      if (zooming && done && !done.moving && Math.abs(done.to - done.from) > 4) {
        show(time_at(Math.min(done.from, done.to)), time_at(Math.max(done.from, done.to)));
      }
    };
    canvas.addEventListener('pointerup', () => release(true));
    canvas.addEventListener('pointercancel', () => release(false));
    canvas.addEventListener('pointerleave', () => { $('tip').hidden = true; });
    canvas.addEventListener('dblclick', () => show(full[0], full[1]));
    canvas.addEventListener('wheel', (event) => {
      const out = event.deltaY > 0;
      // At full width the wheel goes on scrolling the page.
      if (out && view[1] - view[0] >= full[1] - full[0]) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 600);
      else zoom(Math.exp(event.deltaY / 400), time_at(at(event)[0]));
    }, {passive: false});
    canvas.addEventListener('keydown', (event) => {
      const act = {'+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), '0': () => show(full[0], full[1]),
        ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2)}[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    });
    $('zoom-in').addEventListener('click', () => zoom(0.5));
    $('zoom-out').addEventListener('click', () => zoom(2));
    $('zoom-all').addEventListener('click', () => show(full[0], full[1]));
    window.addEventListener('resize', () => show(view[0], view[1]));
    window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  }

  find_extent();
  fill_lanes();
  note_what_is_gone();
  draw();
  listen();
  document.documentElement.dataset.ready = 'yes';
})(Page);
