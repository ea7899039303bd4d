//! One rank of the experiments. It speaks to the process that started it in lines of JSON.

use crate::{layers, wire};
use anyhow::{Context, Result, bail};
use gaggle::{EngineConfig, Group, Kind, Lane, Max, Op, Reduce, Work};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, Write},
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub(crate) const ALONE: &str = "urgent, alone";
pub(crate) const WITHOUT: &str = "urgent, without priority";
pub(crate) const WITH: &str = "urgent, with priority";
pub(crate) const BULK_WITHOUT: &str = "large, beside one without priority";
pub(crate) const BULK_WITH: &str = "large, beside an urgent one";
pub(crate) const COMPUTE: &str = "step, computation alone";
pub(crate) const COMMUNICATION: &str = "step, communication alone";
pub(crate) const FIFO: &str = "step, first come, first served";
pub(crate) const PRIORITY: &str = "step, needed first goes first";

/// What is measured, and how often.
pub(crate) struct Plan {
    /// Repetitions of the urgent experiment.
    pub(crate) rounds: usize,
    pub(crate) urgent_bytes: u64,
    pub(crate) bulk_bytes: u64,
    /// How long the large operation is under way when the urgent one starts.
    lead: Duration,
    /// Blocks of training steps, half of them with priorities.
    pub(crate) blocks: usize,
    /// Measured steps in a block.
    steps: usize,
    /// Every layer's parameters are divided by it.
    shrink: u64,
    /// Communication ÷ computation.
    ratio: f64,
    /// Whether the large operation must outlast the urgent one; on a busy machine a short one need not.
    strict: bool,
}

impl Plan {
    pub(crate) fn full() -> Plan {
        Plan {
            rounds: 25,
            urgent_bytes: 256 << 10,
            bulk_bytes: 100 << 20,
            lead: Duration::from_millis(150),
            blocks: 8,
            steps: 4,
            shrink: 1,
            ratio: 1.35,
            strict: true,
        }
    }

    pub(crate) fn smoke() -> Plan {
        Plan {
            rounds: 2,
            urgent_bytes: 16 << 10,
            bulk_bytes: 8 << 20,
            lead: Duration::from_millis(10),
            blocks: 2,
            steps: 1,
            shrink: 64,
            ratio: 1.35,
            strict: false,
        }
    }

    /// Longest message.
    pub(crate) fn slice_bytes(&self) -> u64 {
        EngineConfig::default().slice_bytes
    }

    /// Bytes of each layer's gradient.
    fn layer_lens(&self) -> Vec<usize> {
        let layers = layers::resnet50();
        let len = |l: &layers::Layer| (l.parameters / self.shrink).max(1) as usize;
        layers.iter().map(len).collect()
    }

    pub(crate) fn layer_bytes(&self) -> u64 {
        4 * self.layer_lens().iter().sum::<usize>() as u64
    }

    /// How often a rank says [`Said::Step`].
    pub(crate) fn steps(&self) -> usize {
        self.rounds + self.blocks + if self.blocks > 0 { 2 } else { 0 }
    }
}

/// What a rank says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Said {
    /// It is there and waits for the wire.
    Ready,
    /// So far.
    Step(String),
    /// A time.
    Sample {
        name: String,
        index: usize,
        seconds: f64,
    },
    /// Bytes that the library says it sent, and that the interface has sent.
    Wire { what: String, sent: u64, seen: u64 },
    /// Everything is measured, and it has left the job.
    End,
}

impl Said {
    fn to_json(&self) -> Value {
        match self {
            Said::Ready => json!({"say": "ready"}),
            Said::Step(what) => json!({"say": "step", "what": what}),
            Said::Sample {
                name,
                index,
                seconds,
            } => json!({"say": "sample", "name": name, "index": index, "seconds": seconds}),
            Said::Wire { what, sent, seen } => {
                json!({"say": "wire", "what": what, "sent": sent, "seen": seen})
            }
            Said::End => json!({"say": "end"}),
        }
    }

    pub(crate) fn parse(line: &str) -> Result<Said> {
        let unknown = || format!("a line that makes no sense: {line}");
        let v: Value = serde_json::from_str(line).with_context(unknown)?;
        let text = |key: &str| v[key].as_str().map(str::to_owned).with_context(unknown);
        let number = |key: &str| v[key].as_u64().with_context(unknown);
        Ok(match v["say"].as_str() {
            Some("ready") => Said::Ready,
            Some("step") => Said::Step(text("what")?),
            Some("sample") => Said::Sample {
                name: text("name")?,
                index: number("index")? as usize,
                seconds: v["seconds"].as_f64().with_context(unknown)?,
            },
            Some("wire") => Said::Wire {
                what: text("what")?,
                sent: number("sent")?,
                seen: number("seen")?,
            },
            Some("end") => Said::End,
            _ => bail!(unknown()),
        })
    }
}

fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", said.to_json())?;
    out.flush().context("nobody listens")
}

fn step(what: impl Into<String>) -> Result<()> {
    say(&Said::Step(what.into()))
}

fn sample(name: &str, index: usize, time: Duration) -> Result<()> {
    say(&Said::Sample {
        name: name.to_owned(),
        index,
        seconds: time.as_secs_f64(),
    })
}

/// This rank has left the job. Nothing else hangs on it: relaxed is enough.
static LEFT: AtomicBool = AtomicBool::new(false);

pub(crate) fn main(plan: &Plan) -> Result<()> {
    say(&Said::Ready)?;
    let mut line = String::new();
    let mut input = std::io::stdin().lock();
    input.read_line(&mut line)?;
    if line.trim() != "go" {
        bail!("whoever started this rank has ended");
    }
    drop(input);
    thread::Builder::new()
        .name("until-the-end".into())
        .spawn(|| {
            // Nothing more comes but the end.
            let mut line = String::new();
            let _ = std::io::stdin().read_line(&mut line);
            process::exit(if LEFT.load(Relaxed) { 0 } else { 3 });
        })?;
    let job = gaggle::join()?;
    let mut odometer = Odometer::new(job.group())?;
    if plan.rounds > 0 {
        urgent(&job, plan)?;
        odometer.say("urgent")?;
    }
    if plan.blocks > 0 {
        training(&job, plan)?;
        odometer.say("layers")?;
    }
    job.leave();
    LEFT.store(true, Relaxed);
    say(&Said::End)?;
    // This end of the wire goes with this process, and takes the other end with it: both stay until both have left.
    loop {
        thread::park();
    }
}

/// Compares what the library says it sent with what the interface has sent.
struct Odometer<'a> {
    group: &'a Group,
    sent: u64,
    seen: u64,
}

impl<'a> Odometer<'a> {
    fn new(group: &'a Group) -> Result<Self> {
        Ok(Odometer {
            group,
            sent: group.stats().payload_sent,
            seen: interface_sent()?,
        })
    }

    fn say(&mut self, what: &str) -> Result<()> {
        // What is under way to the last byte has been received once the others have been heard.
        self.group.barrier()?;
        let (sent, seen) = (self.group.stats().payload_sent, interface_sent()?);
        say(&Said::Wire {
            what: what.to_owned(),
            sent: sent - self.sent,
            seen: seen - self.seen,
        })?;
        (self.sent, self.seen) = (sent, seen);
        Ok(())
    }
}

/// Bytes that the wire's interface has sent, as this namespace sees it.
fn interface_sent() -> Result<u64> {
    let table = fs::read_to_string("/proc/self/net/dev")?;
    // Eight numbers of what was received, then what was sent.
    let line = table
        .lines()
        .find_map(|l| l.trim().strip_prefix(wire::INTERFACE)?.strip_prefix(':'));
    line.and_then(|l| l.split_whitespace().nth(8)?.parse().ok())
        .with_context(|| format!("no interface {} in {table}", wire::INTERFACE))
}

/// A moment from now on that is the same on all ranks, which share a clock.
fn together(group: &Group, after: Duration) -> Result<Instant> {
    let here = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let mut latest = [now];
    group.all_reduce(&mut latest, Max)?;
    Ok(here + Duration::from_secs_f64(latest[0] - now) + after)
}

fn sleep_until(when: Instant) {
    thread::sleep(when.saturating_duration_since(Instant::now()));
}

fn urgent(group: &Group, plan: &Plan) -> Result<()> {
    let ranks = group.size() as f32;
    let all_reduce = || Op::new(Kind::AllReduce(Reduce::Sum));
    let mut bulk = vec![0.0f32; plan.bulk_bytes as usize / 4];
    let mut x = vec![0.0f32; plan.urgent_bytes as usize / 4];
    let mut small = |priority: i32, at: Instant| -> Result<Duration> {
        x.fill(1.0);
        let op = all_reduce().on(Lane(2)).urgent(priority);
        sleep_until(at);
        let start = Instant::now();
        group.run(&op, &mut x)?;
        let time = start.elapsed();
        if x.iter().any(|v| *v != ranks) {
            bail!("a sum is wrong");
        }
        Ok(time)
    };
    // Plans and scratch are made on first use.
    small(0, together(group, plan.lead)?)?;
    for round in 0..plan.rounds {
        sample(ALONE, round, small(0, together(group, plan.lead)?)?)?;
        for (name, of_bulk, priority) in [(WITHOUT, BULK_WITHOUT, 0), (WITH, BULK_WITH, 10)] {
            bulk.fill(1.0);
            let begin = together(group, Duration::from_millis(5))?;
            sleep_until(begin);
            let start = Instant::now();
            let work = group.start(all_reduce().on(Lane(1)), bulk);
            let time = small(priority, begin + plan.lead)?;
            let overtaken = !work.is_done();
            bulk = work.wait()?;
            sample(of_bulk, round, start.elapsed())?;
            sample(name, round, time)?;
            if bulk.first() != Some(&ranks) || bulk.last() != Some(&ranks) {
                bail!("a large sum is wrong");
            }
            if plan.strict && priority > 0 && !overtaken {
                bail!("the large operation was over before the urgent one");
            }
        }
        step("urgent beside large")?;
    }
    Ok(())
}

/// Simulated computation: sleeps, and makes up for having slept too long the next time.
struct Pace {
    debt: Duration,
}

impl Pace {
    fn compute(&mut self, time: Duration) {
        let target = Instant::now() + time.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(time);
        sleep_until(target);
        self.debt += Instant::now().saturating_duration_since(target);
    }
}

/// One model whose steps are timed.
struct Model<'a> {
    group: &'a Group,
    gradients: Vec<Option<Vec<f32>>>,
    pending: Vec<Option<Work<Vec<f32>>>>,
    /// Of each layer, forward; backward takes twice as long.
    forward: Vec<Duration>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Compute,
    Fifo,
    Priority,
}

impl Model<'_> {
    fn n(&self) -> usize {
        self.gradients.len()
    }

    /// Starts a layer's all-reduce.
    fn start(&mut self, layer: usize, mode: Mode) {
        let urgency = match mode {
            Mode::Priority => (self.n() - layer) as i32,
            _ => 0,
        };
        let op = Op::new(Kind::AllReduce(Reduce::Mean))
            .on(Lane(100 + layer as u32))
            .urgent(urgency);
        if let Some(gradient) = self.gradients[layer].take() {
            self.pending[layer] = Some(self.group.start(op, gradient));
        }
    }

    /// Waits for a layer's all-reduce, where there is one.
    fn wait(&mut self, layer: usize) -> Result<()> {
        if let Some(work) = self.pending[layer].take() {
            self.gradients[layer] = Some(work.wait()?);
        }
        Ok(())
    }

    /// The time of all communication, with nothing to compute.
    fn communicate(&mut self) -> Result<Duration> {
        sleep_until(together(self.group, Duration::from_millis(20))?);
        let start = Instant::now();
        for layer in (0..self.n()).rev() {
            self.start(layer, Mode::Fifo);
        }
        for layer in 0..self.n() {
            self.wait(layer)?;
        }
        Ok(start.elapsed())
    }

    /// The times of `steps` steps, after one that does not count since nothing is under way when it begins.
    fn train(&mut self, steps: usize, mode: Mode) -> Result<Vec<Duration>> {
        let mut pace = Pace {
            debt: Duration::ZERO,
        };
        sleep_until(together(self.group, Duration::from_millis(20))?);
        let mut times = Vec::new();
        for _ in 0..=steps {
            let start = Instant::now();
            for layer in 0..self.n() {
                self.wait(layer)?;
                pace.compute(self.forward[layer]);
            }
            for layer in (0..self.n()).rev() {
                pace.compute(2 * self.forward[layer]);
                if mode != Mode::Compute {
                    self.start(layer, mode);
                }
            }
            times.push(start.elapsed());
        }
        for layer in 0..self.n() {
            self.wait(layer)?;
        }
        times.remove(0);
        Ok(times)
    }
}

fn training(group: &Group, plan: &Plan) -> Result<()> {
    let layers = layers::resnet50();
    let lens = plan.layer_lens();
    let mut model = Model {
        group,
        gradients: lens.iter().map(|n| Some(vec![1.0; *n])).collect(),
        pending: layers.iter().map(|_| None).collect(),
        forward: Vec::new(),
    };
    model.communicate()?;
    let mut times = Vec::new();
    for i in 0..plan.steps.max(3) {
        let time = model.communicate()?;
        sample(COMMUNICATION, i, time)?;
        times.push(time);
    }
    times.sort();
    step("communication alone")?;
    // The same on all ranks.
    let mut communication = [times[times.len() / 2].as_secs_f64()];
    group.all_reduce(&mut communication, Max)?;
    let compute = communication[0] / plan.ratio;
    let work: u64 = layers.iter().map(|l| l.work).sum();
    let share = |l: &layers::Layer| l.work as f64 / work as f64;
    let forward = |l| Duration::from_secs_f64(compute / 3.0 * share(l));
    model.forward = layers.iter().map(forward).collect();
    for (i, time) in model
        .train(plan.steps, Mode::Compute)?
        .into_iter()
        .enumerate()
    {
        sample(COMPUTE, i, time)?;
    }
    step("computation alone")?;
    for block in 0..plan.blocks {
        let (mode, name) = match block % 2 {
            0 => (Mode::Fifo, FIFO),
            _ => (Mode::Priority, PRIORITY),
        };
        let first = block / 2 * plan.steps;
        for (i, time) in model.train(plan.steps, mode)?.into_iter().enumerate() {
            sample(name, first + i, time)?;
        }
        step(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for said in [
            Said::Ready,
            Said::Step("x".into()),
            Said::Sample {
                name: WITH.into(),
                index: 3,
                seconds: 0.25,
            },
            Said::Wire {
                what: "layers".into(),
                sent: 1 << 40,
                seen: 2 << 40,
            },
            Said::End,
        ] {
            assert_eq!(
                Said::parse(&said.to_json().to_string()).expect("sound"),
                said
            );
        }
        assert!(Said::parse("thread main panicked").is_err());
        assert!(Said::parse("{\"say\": \"sample\"}").is_err());
    }
}
