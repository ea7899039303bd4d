//! The model: a perceptron of three layers in candle, whose gradients leave it one by one while backward still runs.
//!
//! The main type is [`Model`].
//! It keeps no parameters: they are one flat vector of the caller's, so that update rules and collectives work on them in place.
//! candle has no hook for a complete gradient; an identity operation around each parameter stands in: its own backward step is called exactly when the gradient of that parameter is complete.

use crate::data::{CLASSES, PIXELS, Set};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Storage, Tensor, Var};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Where gradients go: called with the parameter's number and its complete gradient, from within backward.
///
/// An error ends backward; its text is the caller's affair.
pub type GradientSink = Arc<dyn Fn(usize, &[f32]) -> Result<(), Stop> + Send + Sync>;

/// A sink's wish to end backward. The reason stays with whoever made the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// What the framework reports, or a wrong argument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The sink ended backward.
    #[error("model: backward was stopped by whoever takes the gradients")]
    Stopped,
    /// Another number of parameters than the model has.
    #[error("model: {want} parameters in all, got {got}")]
    Length {
        /// The model's.
        want: usize,
        /// The caller's.
        got: usize,
    },
    /// candle failed.
    #[error("model: {0}")]
    Candle(#[from] candle_core::Error),
}

/// A tensor of the model and its place in the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// As in `hidden1.weight`.
    pub name: &'static str,
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Its elements in the flat vector.
    pub at: Range<usize>,
    /// For weights, how many inputs one output sums over; 0 for biases.
    fan_in: usize,
}

/// A batch on its way into the model.
#[derive(Clone, Debug)]
pub struct Batch {
    images: Tensor,
    labels: Tensor,
}

impl Batch {
    /// The images of `set` at the positions `which`.
    ///
    /// # Errors
    /// candle has no memory for it.
    pub fn new(set: &Set, which: &[usize]) -> Result<Batch, ModelError> {
        let mut levels = Vec::with_capacity(which.len() * PIXELS);
        for &i in which {
            levels.extend(set.image(i).iter().map(|&p| normalised(p)));
        }
        let labels: Vec<u32> = which.iter().map(|&i| set.labels[i].into()).collect();
        Ok(Batch {
            images: Tensor::from_vec(levels, (which.len(), PIXELS), &Device::Cpu)?,
            labels: Tensor::from_vec(labels, which.len(), &Device::Cpu)?,
        })
    }

    /// All of `set`.
    ///
    /// # Errors
    /// candle has no memory for it.
    pub fn all(set: &Set) -> Result<Batch, ModelError> {
        let which: Vec<usize> = (0..set.len()).collect();
        Batch::new(set, &which)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.elem_count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Mean and deviation of MNIST's grey levels, by which networks for it are commonly fed.
fn normalised(level: u8) -> f32 {
    (f32::from(level) / 255.0 - 0.1307) / 0.3081
}

/// Widths of the layers: pixels, two hidden ones, classes.
pub const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];

const NAMES: [[&str; 2]; 3] = [
    ["hidden1.weight", "hidden1.bias"],
    ["hidden2.weight", "hidden2.bias"],
    ["out.weight", "out.bias"],
];

/// A perceptron with rectified hidden layers and softmax cross-entropy. f32 throughout.
#[derive(Clone, Debug)]
pub struct Model {
    params: Vec<Param>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// The layers of [`WIDTHS`].
    pub fn new() -> Self {
        let mut params = Vec::new();
        let mut at = 0;
        for (layer, [weight, bias]) in NAMES.into_iter().enumerate() {
            let (inputs, outputs) = (WIDTHS[layer], WIDTHS[layer + 1]);
            for (name, shape, fan_in) in [
                (weight, vec![outputs, inputs], inputs),
                (bias, vec![outputs], 0),
            ] {
                let len = shape.iter().product::<usize>();
                params.push(Param {
                    name,
                    shape,
                    at: at..at + len,
                    fan_in,
                });
                at += len;
            }
        }
        Model { params }
    }

    /// The parameters, in the order in which forward uses them.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Elements of all parameters together.
    pub fn len(&self) -> usize {
        self.params.last().map_or(0, |p| p.at.end)
    }

    /// Whether it has no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parameters to start from: the same on every rank that gives the same seed.
    ///
    /// Weights are uniform in ±√(6 / inputs) (He et al. 2015, equation 10, as a uniform distribution), biases 0.
    pub fn init(&self, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut x = vec![0.0; self.len()];
        for p in self.params.iter().filter(|p| p.fan_in > 0) {
            let bound = (6.0 / p.fan_in as f32).sqrt();
            x[p.at.clone()].fill_with(|| rng.random_range(-bound..bound));
        }
        x
    }

    /// Loss and gradient of a batch at `x`. Each gradient goes to `sink` as soon as it is complete, the last layer's first; returns the mean loss.
    ///
    /// # Errors
    /// [`ModelError::Length`], [`ModelError::Stopped`] where the sink stops, candle's own.
    pub fn gradient(
        &self,
        x: &[f32],
        batch: &Batch,
        sink: &GradientSink,
    ) -> Result<f32, ModelError> {
        let stopped = Arc::new(AtomicBool::new(false));
        let tapped = self
            .tensors(x)?
            .into_iter()
            .enumerate()
            .map(|(idx, t)| {
                Var::from_tensor(&t)?.apply_op1(Tap {
                    idx,
                    sink: Arc::clone(sink),
                    stopped: Arc::clone(&stopped),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let loss = cross_entropy(&tapped, batch)?;
        match loss.backward() {
            Ok(_) => Ok(loss.to_scalar()?),
            Err(_) if stopped.load(Ordering::Relaxed) => Err(ModelError::Stopped),
            Err(e) => Err(e.into()),
        }
    }

    /// Mean loss of a batch at `x`, and how many of its images are told right.
    ///
    /// # Errors
    /// [`ModelError::Length`], candle's own.
    pub fn judge(&self, x: &[f32], batch: &Batch) -> Result<Judgement, ModelError> {
        let tensors = self.tensors(x)?;
        let logits = forward(&tensors, &batch.images)?;
        let right = logits
            .argmax(1)?
            .eq(&batch.labels)?
            .to_dtype(candle_core::DType::U32)?
            .sum_all()?
            .to_scalar::<u32>()?;
        Ok(Judgement {
            loss: candle_nn::loss::cross_entropy(&logits, &batch.labels)?.to_scalar()?,
            accuracy: f64::from(right) / batch.len().max(1) as f64,
        })
    }

    fn tensors(&self, x: &[f32]) -> Result<Vec<Tensor>, ModelError> {
        if x.len() != self.len() {
            return Err(ModelError::Length {
                want: self.len(),
                got: x.len(),
            });
        }
        self.params
            .iter()
            .map(|p| {
                Ok(Tensor::from_slice(
                    &x[p.at.clone()],
                    p.shape.as_slice(),
                    &Device::Cpu,
                )?)
            })
            .collect()
    }
}

/// How well parameters do on a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Mean cross-entropy, in nats.
    pub loss: f32,
    /// Share of images that are told right, from 0 to 1.
    pub accuracy: f64,
}

fn forward(params: &[Tensor], images: &Tensor) -> candle_core::Result<Tensor> {
    let mut h = images.clone();
    for (layer, pair) in params.chunks_exact(2).enumerate() {
        h = h.matmul(&pair[0].t()?)?.broadcast_add(&pair[1])?;
        if layer + 2 < WIDTHS.len() {
            h = h.relu()?;
        }
    }
    Ok(h)
}

fn cross_entropy(params: &[Tensor], batch: &Batch) -> candle_core::Result<Tensor> {
    candle_nn::loss::cross_entropy(&forward(params, &batch.images)?, &batch.labels)
}

/// Identity in forward; in backward it hands the parameter's complete gradient over.
///
/// Costs one copy of the parameter per forward pass, since an operation of candle's must give new storage.
struct Tap {
    idx: usize,
    sink: GradientSink,
    /// Set and read by the one thread that runs backward; atomic because candle's operations are shared.
    stopped: Arc<AtomicBool>,
}

impl CustomOp1 for Tap {
    fn name(&self) -> &'static str {
        "gradient-tap"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let values = whole(s, l)?.to_vec();
        Ok((CpuStorage::F32(values), l.shape().clone()))
    }

    fn bwd(
        &self,
        _arg: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        let Storage::Cpu(cpu) = &*storage else {
            candle_core::bail!("a gradient is not on the CPU");
        };
        match (self.sink)(self.idx, whole(cpu, layout)?) {
            // Nobody asks for it again: it needs no place among candle's gradients.
            Ok(()) => Ok(None),
            Err(Stop) => {
                self.stopped.store(true, Ordering::Relaxed);
                candle_core::bail!("the gradient sink has stopped")
            }
        }
    }
}

fn whole<'a>(s: &'a CpuStorage, l: &Layout) -> candle_core::Result<&'a [f32]> {
    let Some((from, to)) = l.contiguous_offsets() else {
        candle_core::bail!("a parameter or gradient is not contiguous");
    };
    Ok(&s.as_slice::<f32>()?[from..to])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Digits;
    use std::sync::Mutex;

    type Log = Arc<Mutex<Vec<(usize, Vec<f32>)>>>;

    fn logging() -> (Log, GradientSink) {
        let log = Log::default();
        let into = Arc::clone(&log);
        let sink: GradientSink = Arc::new(move |idx, g| {
            into.lock().unwrap().push((idx, g.to_vec()));
            Ok(())
        });
        (log, sink)
    }

    fn batch(n: usize) -> Batch {
        let digits = Digits::load().unwrap();
        Batch::new(&digits.train, &(0..n).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_flat_vector_has_no_gaps() {
        let model = Model::new();
        let mut end = 0;
        for p in model.params() {
            assert_eq!(p.at.start, end);
            assert_eq!(p.at.len(), p.shape.iter().product::<usize>());
            end = p.at.end;
        }
        assert_eq!(model.len(), end);
        assert_eq!(model.len(), 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10);
    }

    #[test]
    fn init_depends_on_the_seed_alone() {
        let model = Model::new();
        assert_eq!(model.init(3), model.init(3));
        assert_ne!(model.init(3), model.init(4));
        assert!(model.init(3).iter().all(|v| v.abs() <= 1.0));
    }

    #[test]
    fn gradients_come_from_the_last_layer_to_the_first_while_backward_runs() {
        let model = Model::new();
        let (log, sink) = logging();
        model.gradient(&model.init(1), &batch(8), &sink).unwrap();
        let order: Vec<usize> = log.lock().unwrap().iter().map(|(idx, _)| *idx).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
        let layers: Vec<usize> = order.iter().map(|idx| idx / 2).collect();
        assert_eq!(layers, [2, 2, 1, 1, 0, 0]);
    }

    /// Bit for bit the gradients that candle computes without the taps.
    #[test]
    fn taps_change_no_gradient() {
        let model = Model::new();
        let (x, batch) = (model.init(1), batch(8));
        let (log, sink) = logging();
        let tapped_loss = model.gradient(&x, &batch, &sink).unwrap();

        let vars: Vec<Var> = model
            .tensors(&x)
            .unwrap()
            .iter()
            .map(|t| Var::from_tensor(t).unwrap())
            .collect();
        let plain: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
        let loss = cross_entropy(&plain, &batch).unwrap();
        let grads = loss.backward().unwrap();
        assert_eq!(loss.to_scalar::<f32>().unwrap(), tapped_loss);
        for (idx, tapped) in log.lock().unwrap().iter() {
            let g = grads.get(&vars[*idx]).unwrap().flatten_all().unwrap();
            assert_eq!(&g.to_vec1::<f32>().unwrap(), tapped, "parameter {idx}");
        }
    }

    /// Central differences of the loss in single precision: a few per cent is what they are good for.
    #[test]
    fn gradients_are_slopes_of_the_loss() {
        let model = Model::new();
        let (x, batch) = (model.init(1), batch(16));
        let (log, sink) = logging();
        model.gradient(&x, &batch, &sink).unwrap();
        for (idx, g) in log.lock().unwrap().iter() {
            let at = (0..g.len())
                .max_by(|a, b| g[*a].abs().total_cmp(&g[*b].abs()))
                .unwrap();
            let mut moved = x.clone();
            let place = model.params()[*idx].at.start + at;
            let h = 1e-2;
            moved[place] = x[place] + h;
            let up = model.judge(&moved, &batch).unwrap().loss;
            moved[place] = x[place] - h;
            let down = model.judge(&moved, &batch).unwrap().loss;
            let slope = (up - down) / (2.0 * h);
            assert!(
                (slope - g[at]).abs() < 0.1 * g[at].abs() + 1e-3,
                "{idx}: {slope} {}",
                g[at]
            );
        }
    }

    #[test]
    fn a_sink_can_stop_backward() {
        let model = Model::new();
        let calls = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&calls);
        let sink: GradientSink = Arc::new(move |_, _| {
            *counter.lock().unwrap() += 1;
            Err(Stop)
        });
        let error = model
            .gradient(&model.init(1), &batch(4), &sink)
            .unwrap_err();
        assert!(matches!(error, ModelError::Stopped), "{error}");
        assert_eq!(*calls.lock().unwrap(), 1);
        let error = model.gradient(&[0.0; 3], &batch(4), &sink).unwrap_err();
        assert_eq!(error.to_string(), "model: 109386 parameters in all, got 3");
    }

    /// Plain descent on one rank learns: the data, the labels and the gradient belong together.
    #[test]
    fn forty_steps_of_descent_tell_most_digits() {
        let digits = Digits::load().unwrap();
        let test = Batch::all(&digits.test).unwrap();
        let model = Model::new();
        let mut x = model.init(1);
        let before = model.judge(&x, &test).unwrap();
        for step in 0..40 {
            let which: Vec<usize> = (step * 64..(step + 1) * 64).collect();
            let batch = Batch::new(&digits.train, &which).unwrap();
            let (log, sink) = logging();
            model.gradient(&x, &batch, &sink).unwrap();
            for (idx, g) in log.lock().unwrap().iter() {
                let span = &mut x[model.params()[*idx].at.clone()];
                for (v, d) in span.iter_mut().zip(g) {
                    *v -= 0.1 * d;
                }
            }
        }
        let after = model.judge(&x, &test).unwrap();
        assert!(before.accuracy < 0.3, "{before:?}");
        assert!(after.accuracy > 0.75, "{after:?}");
        assert!(after.loss < before.loss / 2.0);
    }
}
