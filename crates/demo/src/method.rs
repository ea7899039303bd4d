//! One step of training, in two ways: gradients averaged over everybody while backward runs, or an update rule whose messages travel under forward and backward.
//!
//! The seam is [`Method`]; [`method`] makes one by name.

use crate::{
    error::DemoError,
    formula,
    model::{Batch, GradientSink, Model, ModelError, Param, Stop, WIDTHS},
    settings::{ALL_REDUCE, Settings, Wire},
};
use gaggle::{
    Error, Float, Group, Lane, Rank, Weight,
    core::{Cx, Exchange, Local, Mixer, Topology},
    ddp::{
        Bf16Mean, BucketConfig, CommHook, Ddp, DdpConfig, DdpError, MixMeter, MixReport,
        NeighbourMixer, ParamSpec, PlainMean, RuleDdp,
    },
    optim::{Clip, LocalKind, LocalRule},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What a step has cost beside computing. Times are on the group's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Mean loss of this rank's batch, before the step.
    pub loss: f32,
    /// At least one operation was under way while this rank went on computing.
    pub hidden: Duration,
    /// How long this rank did not compute because of one: it stood still, or its thread was busy sending and receiving.
    pub wait: Duration,
}

impl StepCost {
    /// How long at least one operation was under way, as this rank saw it: until it went on.
    pub fn communicate(&self) -> Duration {
        self.hidden + self.wait
    }
}

/// A way to train, on one rank. Every rank makes the same calls in the same order.
pub trait Method {
    /// One step: gradient of `batch` at `x`, whatever is exchanged, and the update of `x`.
    ///
    /// # Errors
    /// candle's, or the network's with the culprit; the run is over then.
    fn step(&mut self, model: &Model, x: &mut [f32], batch: &Batch) -> Result<StepCost, DemoError>;
    /// The payload bytes that a rank should have sent per step, by arithmetic: over `steps` steps, mean over ranks.
    ///
    /// # Errors
    /// The group cannot tell which plan it would use.
    fn payload_formula(&self, steps: u64) -> Result<f64, DemoError>;
}

/// The method called `name`, on lanes of its own: `run` is its number in the demo. Whether it goes with the topology has been found out before.
///
/// # Errors
/// The ranks disagree about the model, or a name is unknown.
pub fn method(
    name: &str,
    run: usize,
    settings: &Settings,
    model: &Model,
    group: &Group,
) -> Result<Box<dyn Method>, DemoError> {
    if name == ALL_REDUCE {
        return Ok(Box::new(Gradients::new(settings, model, group)?));
    }
    Ok(Box::new(Parameters::new(
        name, run, settings, model, group,
    )?))
}

/// Gradients averaged in buckets under backward, then momentum SGD, or another local step, on every rank alike.
struct Gradients {
    ddp: Ddp<f32>,
    sink: GradientSink,
    handing: Arc<Mutex<Handing>>,
    weight: Weight,
    step: Box<dyn LocalRule<f32>>,
    clip: Option<Clip>,
    cx: Cx,
    grad: Vec<f32>,
    clipped: Vec<f32>,
    wire: Wire,
}

/// How handing gradients over went.
#[derive(Default)]
struct Handing {
    /// In this step so far.
    took: Duration,
    /// Why the sink has stopped backward.
    stopped: Option<DdpError>,
}

impl Gradients {
    fn new(settings: &Settings, model: &Model, group: &Group) -> Result<Self, DemoError> {
        let hook: Arc<dyn CommHook<f32>> = match settings.wire {
            Wire::Plain => Arc::new(PlainMean),
            Wire::Bf16 => Arc::new(Bf16Mean),
        };
        let config = DdpConfig {
            buckets: BUCKETS,
            ..DdpConfig::default()
        };
        let ddp = Ddp::new(group.clone(), &specs(model), hook, config)?;
        let handing = Arc::new(Mutex::new(Handing::default()));
        let (feed, clock, handed) = (ddp.feed(), group.clone(), Arc::clone(&handing));
        let sink: GradientSink = Arc::new(move |idx, grad| {
            let began = now(&clock);
            let outcome = feed.ready(idx, grad);
            let mut handed = lock(&handed);
            handed.took += now(&clock).saturating_sub(began);
            outcome.map_err(|e| {
                handed.stopped = Some(e);
                Stop
            })
        });
        let config = settings.rule_config(ALL_REDUCE);
        let mut step = config.local_rule(LocalKind::Momentum)?;
        step.init(model.len());
        Ok(Gradients {
            ddp,
            sink,
            handing,
            weight: Weight::samples(u32::try_from(settings.batch).unwrap_or(u32::MAX)),
            step,
            clip: config.clip,
            cx: Cx::at(0, settings.lr),
            grad: vec![0.0; model.len()],
            clipped: vec![],
            wire: settings.wire,
        })
    }
}

impl Method for Gradients {
    fn step(&mut self, model: &Model, x: &mut [f32], batch: &Batch) -> Result<StepCost, DemoError> {
        self.ddp.begin_step(self.weight)?;
        let loss = model
            .gradient(x, batch, &self.sink)
            .map_err(|e| stop_reason(e, lock(&self.handing).stopped.take()))?;
        let reduced = self.ddp.finish()?;
        reduced.copy_to(&mut self.grad)?;
        let report = reduced.report();
        // What the thread itself did for the buckets within backward was not hidden from it.
        let took = std::mem::take(&mut lock(&self.handing).took);
        let cost = StepCost {
            loss,
            hidden: report.hidden.saturating_sub(took),
            wait: report.wait + took,
        };
        let g = match &self.clip {
            None => &self.grad,
            Some(clip) => {
                clip.apply(&self.grad, &mut self.clipped);
                &self.clipped
            }
        };
        let at = 0..x.len();
        self.step.step(&self.cx, Local { at, x, g });
        self.cx.step += 1;
        Ok(cost)
    }

    fn payload_formula(&self, _steps: u64) -> Result<f64, DemoError> {
        let mut bytes = 0.0;
        for bucket in self.ddp.layout().buckets() {
            bytes += formula::all_reduce(self.ddp.group(), bucket.len_elems, self.wire)?;
        }
        Ok(bytes)
    }
}

/// Past the lanes that all-reduce runs use; each of the others has as many of its own, more than any rule has messages at a time: one for each bucket of each of streaming DiLoCo's parts.
const FIRST_LANE: u32 = 2000;
const LANES: u32 = 4096;

/// A rule on a topology, its messages in buckets under forward and backward.
struct Parameters {
    ddp: RuleDdp<f32>,
    meter: MixMeter,
    /// How long this rank has been inside the mixer, in this step so far.
    busy: Arc<Mutex<Duration>>,
    lr: f64,
    sink: GradientSink,
    /// Why the sink has stopped backward.
    stopped: Arc<Mutex<Option<DdpError>>>,
    topology: Box<dyn Topology>,
    group: Group,
    wire: Wire,
}

impl Parameters {
    fn new(
        name: &str,
        run: usize,
        settings: &Settings,
        model: &Model,
        group: &Group,
    ) -> Result<Self, DemoError> {
        // Each run counts its rounds from 0, and a lane wants growing ones.
        let lane = FIRST_LANE + LANES * run as u32;
        let topology = || settings.topology(group.size());
        let mixer = NeighbourMixer::on_lanes(group.clone(), topology()?, Lane(lane))?;
        let meter = mixer.meter();
        let busy = Arc::new(Mutex::new(Duration::ZERO));
        let mixer = Timed {
            mixer,
            clock: group.clone(),
            busy: Arc::clone(&busy),
        };
        let rule = settings.rules.make(name, &settings.rule_config(name))?;
        let x = model.init(settings.seed);
        let ddp = RuleDdp::unchecked(&specs(model), &BUCKETS, rule, Box::new(mixer), x)?;
        let stopped = Arc::new(Mutex::new(None));
        let (feed, why) = (ddp.feed(), Arc::clone(&stopped));
        let sink: GradientSink = Arc::new(move |idx, grad| {
            feed.ready(idx, grad).map_err(|e| {
                *lock(&why) = Some(e);
                Stop
            })
        });
        Ok(Parameters {
            ddp,
            meter,
            busy,
            lr: settings.lr,
            sink,
            stopped,
            topology: topology()?,
            group: group.clone(),
            wire: settings.wire,
        })
    }
}

impl Method for Parameters {
    fn step(&mut self, model: &Model, x: &mut [f32], batch: &Batch) -> Result<StepCost, DemoError> {
        let before = self.meter.report();
        self.ddp.begin_step(self.lr)?;
        for (idx, param) in model.params().iter().enumerate() {
            self.ddp.parameter(idx, &mut x[param.at.clone()])?;
        }
        let loss = model
            .gradient(x, batch, &self.sink)
            .map_err(|e| stop_reason(e, lock(&self.stopped).take()))?;
        x.copy_from_slice(self.ddp.finish()?);
        let MixReport { communicate, .. } = self.meter.report().since(&before);
        let wait = std::mem::take(&mut *lock(&self.busy));
        Ok(StepCost {
            loss,
            hidden: communicate.saturating_sub(wait),
            wait,
        })
    }

    fn payload_formula(&self, steps: u64) -> Result<f64, DemoError> {
        self.ddp.with_driver(|driver| {
            let spans = match driver.rule().whole() {
                true => std::iter::once(0..driver.x().len()).collect(),
                false => driver.buckets().to_vec(),
            };
            let (group, topology) = (&self.group, &*self.topology);
            formula::exchanges(group, topology, driver.rule(), &spans, self.wire, steps)
        })
    }
}

/// Why backward has ended: the sink's reason, where it has one.
fn stop_reason(e: ModelError, why: Option<DdpError>) -> DemoError {
    match (e, why) {
        (ModelError::Stopped, Some(why)) => DemoError::Ddp(why),
        (e, _) => DemoError::Model(e),
    }
}

/// The model's tensors, for those who pack them.
fn specs(model: &Model) -> Vec<ParamSpec> {
    let spec = |p: &Param| ParamSpec::new(p.name, p.shape.clone());
    model.params().iter().map(spec).collect()
}

/// About one bucket per layer: the model is small, and the last layers' gradients travel while the first layer's is computed.
const BUCKETS: BucketConfig = BucketConfig {
    first_bytes: layer_bytes(2),
    cap_bytes: layer_bytes(1),
};

const fn layer_bytes(l: usize) -> usize {
    size_of::<f32>() * (WIDTHS[l] + 1) * WIDTHS[l + 1]
}

/// A mixer that notes how long its caller was inside it.
struct Timed<M> {
    mixer: M,
    clock: Group,
    busy: Arc<Mutex<Duration>>,
}

impl<M> Timed<M> {
    fn time<R>(&mut self, f: impl FnOnce(&mut M) -> R) -> R {
        let began = now(&self.clock);
        let result = f(&mut self.mixer);
        *lock(&self.busy) += now(&self.clock).saturating_sub(began);
        result
    }
}

impl<T: Float, M: Mixer<T>> Mixer<T> for Timed<M> {
    fn rank(&self) -> Rank {
        self.mixer.rank()
    }
    fn world(&self) -> usize {
        self.mixer.world()
    }
    fn messages(&mut self, exchange: &Exchange) -> usize {
        self.mixer.messages(exchange)
    }
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T] {
        self.mixer.outbox(slot, n)
    }
    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error> {
        self.time(|m| m.start(exchange, t))
    }
    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        self.time(|m| m.finish(slot))
    }
    fn mean(&self, slot: usize) -> &[T] {
        self.mixer.mean(slot)
    }
    fn weights(&self, slot: usize) -> &[f64] {
        self.mixer.weights(slot)
    }
}

fn now(group: &Group) -> Duration {
    group.communicator().now()
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
