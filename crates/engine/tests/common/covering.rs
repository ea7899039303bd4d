//! Covering arrays: few cases in which every pair of values of any two factors occurs. Deterministic.

/// A case: a value of each factor.
pub type Pick = Vec<usize>;

/// Every combination that is allowed.
pub fn complete(factors: &[usize], allowed: &dyn Fn(&[usize]) -> bool) -> Vec<Pick> {
    let mut all = vec![];
    let mut pick = vec![0; factors.len()];
    loop {
        if allowed(&pick) {
            all.push(pick.clone());
        }
        let Some(at) = (0..factors.len())
            .rev()
            .find(|f| pick[*f] + 1 < factors[*f])
        else {
            return all;
        };
        pick[at] += 1;
        pick[at + 1..].fill(0);
    }
}

/// Cases in which every pair of values occurs that any allowed case has. `allowed` is asked of whole cases.
///
/// Greedy: a pair that is still missing is fixed, the other factors take, one after the other, the values that cover most that is missing; where that is not allowed, the values are tried in turn.
pub fn pairwise(factors: &[usize], allowed: &dyn Fn(&[usize]) -> bool) -> Vec<Pick> {
    let n = factors.len();
    let mut missing = std::collections::BTreeSet::new();
    for a in 0..n {
        for b in a + 1..n {
            for va in 0..factors[a] {
                missing.extend((0..factors[b]).map(|vb| (a, va, b, vb)));
            }
        }
    }
    let mut cases = vec![];
    while let Some(&(a, va, b, vb)) = missing.first() {
        let mut pick: Vec<Option<usize>> = vec![None; n];
        (pick[a], pick[b]) = (Some(va), Some(vb));
        // Another start for every case, so that ties do not always fall the same way.
        let start = cases.len();
        match fill(factors, &missing, &mut pick, 0, start, allowed) {
            Some(case) => {
                missing.retain(|(a, va, b, vb)| case[*a] != *va || case[*b] != *vb);
                cases.push(case);
            }
            None => {
                missing.remove(&(a, va, b, vb));
            }
        }
    }
    cases
}

type Missing = std::collections::BTreeSet<(usize, usize, usize, usize)>;

fn fill(
    factors: &[usize],
    missing: &Missing,
    pick: &mut Vec<Option<usize>>,
    at: usize,
    start: usize,
    allowed: &dyn Fn(&[usize]) -> bool,
) -> Option<Pick> {
    let Some(f) = (at..factors.len()).find(|f| pick[*f].is_none()) else {
        let case: Pick = pick.iter().flatten().copied().collect();
        return allowed(&case).then_some(case);
    };
    let gain = |value: usize| {
        let with = |other: usize, v: usize| {
            let pair = if other < f {
                (other, v, f, value)
            } else {
                (f, value, other, v)
            };
            usize::from(missing.contains(&pair))
        };
        let known = pick.iter().enumerate();
        known
            .filter_map(|(other, v)| v.map(|v| with(other, v)))
            .sum::<usize>()
    };
    let mut order: Vec<usize> = (0..factors[f]).map(|v| (v + start) % factors[f]).collect();
    order.sort_by_key(|v| std::cmp::Reverse(gain(*v)));
    for value in order {
        pick[f] = Some(value);
        if let Some(case) = fill(factors, missing, pick, f + 1, start, allowed) {
            return Some(case);
        }
    }
    pick[f] = None;
    None
}
