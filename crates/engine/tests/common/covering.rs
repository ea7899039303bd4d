//! Covering arrays: few cases in which every pair of values of any two factors occurs. Deterministic.

/// A case: a value of each factor.
pub type Pick = Vec<usize>;

/// Whether a case may have these values; `None`: not chosen yet. It may say yes where no whole case is allowed, but is asked often.
pub type Allowed<'a> = &'a dyn Fn(&[Option<usize>]) -> bool;

/// Every combination that is allowed.
pub fn complete(factors: &[usize], allowed: Allowed<'_>) -> Vec<Pick> {
    fn rest(
        factors: &[usize],
        at: usize,
        pick: &mut Vec<Option<usize>>,
        allowed: Allowed<'_>,
        all: &mut Vec<Pick>,
    ) {
        if at == factors.len() {
            return all.push(pick.iter().flatten().copied().collect());
        }
        for value in 0..factors[at] {
            pick[at] = Some(value);
            if allowed(pick) {
                rest(factors, at + 1, pick, allowed, all);
            }
        }
        pick[at] = None;
    }
    let mut all = vec![];
    rest(
        factors,
        0,
        &mut vec![None; factors.len()],
        allowed,
        &mut all,
    );
    all
}

/// Cases in which every pair of values occurs that any allowed case has.
///
/// Greedy: a pair that is still missing is fixed, the other factors take, one after the other, the values that cover most that is missing; where that is not allowed, the values are tried in turn.
pub fn pairwise(factors: &[usize], allowed: Allowed<'_>) -> Vec<Pick> {
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
        let possible = allowed(&pick);
        let filled = possible.then(|| fill(factors, &missing, &mut pick, 0, start, allowed));
        match filled.flatten() {
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
    allowed: Allowed<'_>,
) -> Option<Pick> {
    let Some(f) = (at..factors.len()).find(|f| pick[*f].is_none()) else {
        return Some(pick.iter().flatten().copied().collect());
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
        if allowed(pick)
            && let Some(case) = fill(factors, missing, pick, f + 1, start, allowed)
        {
            return Some(case);
        }
    }
    pick[f] = None;
    None
}
