// Reads klad's stream of figures, one sample a second, and keeps the last 15 minutes. EventSource cannot send a token,
// so this module reads the stream with fetch. If klad does not answer, the module tries again until klad does.
import { ApiError, send } from "./api.js";
import { SeriesSet, isSameProcess } from "./figures.js";

/** Samples are kept this long, ms. */
const KEPT_MS = 15 * 60 * 1000;
/** The stream counts as broken if no byte comes for this time, ms. */
const SILENCE_MAX_MS = 5000;
/** klad counts as gone if nothing has come for this time, ms. */
const GONE_MS = 3000;
/** The pauses before new attempts, ms. The last pause repeats. */
const PAUSES_MS = [250, 500, 1000, 2000, 3000];

export class Stream {
    /** `listener` is called after each change. */
    constructor(listener) {
        this.listener = listener;
        /** The samples `{ t, up, values, set }`, oldest first. */
        this.samples = [];
        /** The series of the samples that arrive now. */
        this.set = null;
        /** The meaning of each family. */
        this.help = {};
        /** Whether klad leaves values out, because there are too many series. */
        this.leftOut = false;
        this.isLive = false;
        /** When klad answered last, Unix time in ms of this machine. */
        this.answeredAt = null;
        /** The error of the last attempt. */
        this.error = null;
        this.run = null;
    }

    start() {
        if (this.run) return;
        this.run = new AbortController();
        this.error = null;
        this.isLive = false;
        // The time without an answer counts from here.
        this.answeredAt = Date.now();
        this.follow(this.run.signal);
    }

    /** Closes the connection: klad then stops sending. */
    stop() {
        if (this.run) this.run.abort();
        this.run = null;
    }

    /** The error answer by which klad has rejected the last attempt, or null. */
    get refusal() {
        return !this.isLive && this.error instanceof ApiError ? this.error : null;
    }

    /** Whether klad has not answered for `GONE_MS`. */
    get isGone() {
        return !this.isLive && this.run !== null && !this.refusal && Date.now() - this.answeredAt > GONE_MS;
    }

    get latest() {
        return this.samples[this.samples.length - 1];
    }

    async follow(stopped) {
        for (let failures = 0; !stopped.aborted; failures += 1) {
            try {
                await this.readOnce(stopped, () => {
                    failures = 0;
                    this.error = null;
                });
            } catch (error) {
                this.error = error;
                if (error instanceof ApiError) this.answeredAt = Date.now();
            }
            if (stopped.aborted) return;
            this.isLive = false;
            this.listener();
            // The login starts the stream again.
            if (this.error instanceof ApiError && this.error.status === 401) {
                this.stop();
                return;
            }
            await pause(PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]);
        }
    }

    /** Reads the stream until it ends. Calls `received` for each event. */
    async readOnce(stopped, received) {
        const attempt = new AbortController();
        const abort = () => attempt.abort();
        stopped.addEventListener("abort", abort);
        let watch = setTimeout(abort, SILENCE_MAX_MS);
        try {
            const answer = await send("/console/events", { signal: attempt.signal });
            const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
            let rest = "";
            for (;;) {
                const { value, done } = await reader.read();
                if (done) return;
                clearTimeout(watch);
                watch = setTimeout(abort, SILENCE_MAX_MS);
                const events = (rest + value).split("\n\n");
                rest = events.pop();
                for (const event of events) this.take(event);
                if (events.length > 0) {
                    this.isLive = true;
                    this.answeredAt = Date.now();
                    received();
                    this.listener();
                }
            }
        } finally {
            clearTimeout(watch);
            stopped.removeEventListener("abort", abort);
        }
    }

    take(text) {
        let kind = "message";
        let data = "";
        for (const line of text.split("\n")) {
            if (line.startsWith("event:")) kind = line.slice(6).trim();
            else if (line.startsWith("data:")) data += line.slice(5).trim();
        }
        if (data === "") return;
        const read = JSON.parse(data);
        if (kind === "help") this.help = read;
        else if (kind === "series") {
            this.set = new SeriesSet(read.series, read.interval_ms, read.started_ms);
            this.leftOut = read.left_out || false;
        } else if (kind === "history") read.samples.forEach((sample) => this.add(sample));
        else if (kind === "sample") this.add(read);
    }

    add([t, up, ...values]) {
        const sample = { t, up, values, set: this.set };
        const { latest } = this;
        if (latest) {
            const goesOn = isSameProcess(latest, sample);
            // After a reconnection the history repeats what the page already has.
            if (goesOn && up <= latest.up) return;
            // If the clock is set back, move the older samples back too, so that the line does not turn back on the
            // time axis. A step forward stays a gap, because the machine may have been suspended, and the time since
            // klad's start does not count that.
            const step = t - latest.t - (goesOn ? up - latest.up : this.set.intervalMs);
            if (step < (goesOn ? -this.set.intervalMs : 0))
                for (const older of this.samples) older.t += step;
        }
        this.samples.push(sample);
        while (this.samples.length * this.set.intervalMs > KEPT_MS) this.samples.shift();
    }
}

function pause(ms) {
    return new Promise((done) => setTimeout(done, ms));
}
