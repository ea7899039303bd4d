//! Signum among neighbours: an update rule from outside the library, which needs `gaggle-optim` alone.
//!
//! [`Signum`] is the rule; whoever drives rules of the library drives it, over any topology and any transport.

#![forbid(unsafe_code)]

use gaggle_optim::{At, Cx, Exchange, Float, Local, MixedMean, Place, Rule};

/// m⁺ = βm + (1 − β)g; x⁺ = W(x − γ·sign(m⁺)), where sign(0) = 0.
///
/// For gradients of very unequal sizes: every parameter moves by γ, whatever the size of its gradient.
/// One message of n elements per step, state m.
/// Source: Bernstein et al. 2018, "signSGD", algorithm 2 (Signum, β = 0.9), its step averaged with neighbours as in DSGD.
pub struct Signum<T> {
    beta: f64,
    m: Vec<T>,
}

impl<T: Float> Signum<T> {
    /// With momentum β, from 0 to below 1; other values are brought there.
    pub fn new(beta: f64) -> Self {
        let beta = beta.clamp(0.0, 1.0 - f64::EPSILON);
        Signum { beta, m: vec![] }
    }
}

impl<T: Float> Rule<T> for Signum<T> {
    fn name(&self) -> &str {
        "signum"
    }

    fn init(&mut self, n: usize, _place: Place) {
        self.m = vec![T::from_f64(0.0); n];
    }

    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        list.push(Exchange::neighbours(cx));
    }

    fn emit(&mut self, cx: &Cx, _slot: usize, local: Local<'_, T>, out: &mut [T]) {
        let (m, x, g) = (&mut self.m[local.at], local.x, local.g);
        for (((m, x), g), out) in m.iter_mut().zip(x).zip(g).zip(out) {
            let new = self.beta * m.to_f64() + (1.0 - self.beta) * g.to_f64();
            let sign = if new == 0.0 { 0.0 } else { new.signum() };
            *m = T::from_f64(new);
            *x = T::from_f64(x.to_f64() - cx.lr * sign);
            *out = *x;
        }
    }

    fn absorb(&mut self, _cx: &Cx, at: At, local: Local<'_, T>, means: &[MixedMean<'_, T>]) {
        if let (At::AfterGradient, [mean]) = (at, means) {
            local.x.copy_from_slice(mean.values);
        }
    }

    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        visit("momentum", &mut self.m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_optim::{Decentralised, testing::DenseMixer};

    /// A ring of `n` with a third for each neighbour and oneself.
    fn ring(n: usize) -> impl Fn(u64, usize, usize) -> f64 {
        move |_, i, j| match (n, (i + n - j) % n) {
            (1, _) => 1.0,
            (2, _) => 0.5,
            (_, d) if d <= 1 || d == n - 1 => 1.0 / 3.0,
            _ => 0.0,
        }
    }

    /// Every rank's x after each of `steps` steps of size γ; rank r sees (x − r)²/2 of each of two elements.
    fn train(n: usize, steps: usize, lr: f64) -> Vec<[f64; 2]> {
        let mut ranks: Vec<_> = DenseMixer::<f64>::world(n, ring(n))
            .into_iter()
            .map(|mixer| Decentralised::unchecked(Box::new(Signum::new(0.9)), Box::new(mixer), 2))
            .collect();
        let mut x = vec![[0.0; 2]; n];
        for _ in 0..steps {
            let g: Vec<[f64; 2]> = (0..n).map(|r| x[r].map(|x| x - r as f64)).collect();
            for (r, rank) in ranks.iter_mut().enumerate() {
                let begun = rank.begin(At::AfterGradient, lr, &mut x[r], &g[r]);
                begun.expect("messages go out");
            }
            for (r, rank) in ranks.iter_mut().enumerate() {
                let ended = rank.end(At::AfterGradient, &mut x[r], &g[r]);
                ended.expect("means come in");
            }
        }
        x
    }

    #[test]
    fn the_first_step_is_one_step_size_by_sign_and_averaged() {
        // Rank 0's gradient is 0, those of ranks 1 and 2 are −1 and −2.
        let x = train(3, 1, 0.3);
        for x in x {
            assert!((x[0] - 0.2).abs() < 1e-15, "{x:?}");
        }
        assert_eq!(train(1, 1, 0.3), [[0.0; 2]]);
    }

    #[test]
    fn ranks_meet_near_the_middle_of_what_they_want() {
        for n in [1, 2, 3, 5, 7, 8] {
            let middle = (n as f64 - 1.0) / 2.0;
            // Signs vote: any median is as good, and neighbours pull towards the mean.
            for x in train(n, 4000, 0.01) {
                assert!((x[0] - middle).abs() <= 0.6, "{n}: {x:?} {middle}");
                assert_eq!(x[0], x[1]);
            }
        }
    }
}
