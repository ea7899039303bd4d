//! What the command line says, made sense of: the operation, what is varied, sizes, places and numbers of calls.

use super::{
    PerfArgs, Places,
    measure::{Iterations, Wishes},
    number,
    operation::{Named, Operation, Place, Setting},
};
use gaggle_core::{Codec, DType, Reduce};

/// Nobody measures more sizes than this on purpose.
const MOST_SIZES: usize = 10_000;

/// Why buffers of registered memory cannot be had.
pub(super) const NOT_REGISTERED: &str = "--registered needs ranks of one host that share its memory: without --transport tcp, and of threads at most 16";

/// One, or all there are in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Every<T> {
    One(T),
    All,
}

/// What is measured of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Variant {
    pub(super) dtype: DType,
    /// A sum where nothing is combined.
    pub(super) reduce: Reduce,
}

pub(super) fn dtypes(text: &str) -> Result<Every<DType>, String> {
    match text {
        "all" => Ok(Every::All),
        one => number::dtype(one).map(Every::One),
    }
}

pub(super) fn roots(text: &str) -> Result<Every<u32>, String> {
    match text {
        "all" | "-1" => Ok(Every::All),
        one => one
            .parse()
            .map(Every::One)
            .map_err(|_| "give a rank, or all (or -1) for each in turn".into()),
    }
}

/// Options that say something of other operations only are slips, and those that contradict each other, too.
///
/// # Errors
/// Which, in words.
pub(super) fn check_options(args: &PerfArgs, operation: Operation) -> Result<(), String> {
    let name = operation.name();
    let neighbours = matches!(
        operation,
        Operation::Neighbour | Operation::NeighbourGather | Operation::Hierarchical
    );
    if args.topology.is_some() && !neighbours {
        return Err(format!(
            "--topology says who a rank's neighbours are, and in {name} it has none"
        ));
    }
    if args.per_machine.is_some() && operation != Operation::Hierarchical {
        return Err(format!(
            "--per-machine is for hierarchical averages, not for {name}"
        ));
    }
    if args.root.is_some() && !operation.is_rooted() {
        return Err(format!(
            "--root is for operations that have one, and {name} has none"
        ));
    }
    if args.force_codec && args.codec == Codec::None {
        return Err("--force-codec needs a codec: say --codec, too".into());
    }
    if args.csv && args.json.as_ref().is_some_and(|p| p.as_os_str() == "-") {
        return Err("--csv and --json - both go to standard output: leave one out".into());
    }
    Ok(())
}

/// Of the element types and reductions that are asked for, those that the operation has.
///
/// # Errors
/// There is none; of one that was named, why.
pub(super) fn variants(
    args: &PerfArgs,
    operation: Operation,
    reduces: Every<Reduce>,
) -> Result<Vec<Variant>, String> {
    let dtypes = match args.dtype {
        Every::One(dtype) => vec![dtype],
        // It has no elements of any type.
        Every::All if operation == Operation::Barrier => vec![DType::F32],
        Every::All => DType::ALL.to_vec(),
    };
    let reduces: Vec<Reduce> = match reduces {
        Every::One(reduce) => vec![reduce],
        // One of the user's own is not measured.
        Every::All => Reduce::ALL
            .into_iter()
            .filter(|r| *r != Reduce::User)
            .collect(),
    };
    let (mut all, mut why) = (Vec::new(), String::new());
    for dtype in dtypes {
        for &reduce in &reduces {
            match defined(operation, args.codec, dtype, reduce) {
                Ok(()) => all.push(Variant { dtype, reduce }),
                Err(not) => why = not,
            }
        }
    }
    if args.csv && (all.len() > 1 || args.root == Some(Every::All)) {
        return Err("--csv has no column for types, reductions and roots: say one of each".into());
    }
    match all.is_empty() {
        true => Err(why),
        false => Ok(all),
    }
}

fn defined(operation: Operation, codec: Codec, dtype: DType, reduce: Reduce) -> Result<(), String> {
    if operation.reduces() && !reduce.is_defined_on(dtype) {
        return Err(format!("{reduce} is not defined on {dtype}"));
    }
    if operation.averages() && !dtype.is_float() {
        return Err(format!("averages need floats, not {dtype}"));
    }
    if codec != Codec::None && !codec.applies_to(dtype) {
        return Err(format!("the {codec} codec applies to f32, not to {dtype}"));
    }
    Ok(())
}

/// Of sizes between two ends those that are measured: none that holds no element though it has bytes, and none that comes to the same as the one before.
///
/// # Errors
/// None is left.
pub(super) fn distinct(wishes: &Wishes, setting: &Setting) -> Result<Vec<u64>, String> {
    let mut before = None;
    let width = wishes.dtype.size() as u64;
    let is_new = |bytes: &u64| {
        let elements = setting.elements(bytes / width);
        let counts = *bytes == 0 || elements > 0;
        counts && before.replace(elements) != Some(elements)
    };
    let left: Vec<u64> = wishes.sizes.iter().copied().filter(is_new).collect();
    let ends = wishes.sizes.first().zip(wishes.sizes.last());
    match (left.is_empty(), ends) {
        (true, Some((least, most))) if setting.operation != Operation::Barrier => {
            let world = u64::from(setting.world);
            let (whose, fewest) = match setting.elements(1) {
                0 => (" for each part", world),
                _ => ("", 1),
            };
            Err(format!(
                "no size from {least} to {most} bytes holds an element of {}{whose}: give --maxbytes of at least {}",
                wishes.dtype,
                width * fewest
            ))
        }
        (true, _) => Ok(vec![0]),
        (false, _) => Ok(left),
    }
}

/// The operation and the reduction, wherever they are said.
pub(super) fn names(args: &PerfArgs) -> Result<(Named, Every<Reduce>), String> {
    let known = || {
        let names: Vec<&str> = Operation::ALL.iter().map(|o| o.name()).collect();
        names.join(", ")
    };
    let mut named = None;
    if let Some(text) = &args.operation {
        let found = Operation::parse(text);
        named =
            Some(found.ok_or_else(|| {
                format!("no operation is called '{text}'; there are {}", known())
            })?);
    }
    let mut reduce = None;
    for text in &args.op {
        let name = if text == "avg" { "mean" } else { text };
        let twice = match (Operation::parse(text), name.parse::<Reduce>()) {
            (Some(operation), _) => named.replace(operation).is_some(),
            _ if text == "all" => reduce.replace(Every::All).is_some(),
            (None, Ok(Reduce::User)) => {
                return Err("--op user: a reduction of your own is not measured here".into());
            }
            (None, Ok(found)) => reduce.replace(Every::One(found)).is_some(),
            (None, Err(why)) => {
                return Err(format!("--op {text}: {why}; operations are {}", known()));
            }
        };
        if twice {
            return Err(format!("--op {text}: that is said twice"));
        }
    }
    let named = named.ok_or_else(|| format!("say which operation: {}", known()))?;
    if reduce.is_some() && !named.operation.reduces() {
        return Err(format!(
            "--op says how contributions are combined, and {} combines none",
            named.operation.name()
        ));
    }
    Ok((named, reduce.unwrap_or(Every::One(Reduce::Sum))))
}

/// The sizes that are asked for, in bytes; after 0 comes one element.
pub(super) fn sizes(
    args: &PerfArgs,
    operation: Operation,
    dtype: DType,
) -> Result<Vec<u64>, String> {
    if operation == Operation::Barrier {
        return Ok(vec![0]);
    }
    if !args.sizes.is_empty() {
        return Ok(args.sizes.clone());
    }
    const LEAST: u64 = 8;
    const MOST: u64 = 64 << 20;
    let least = args
        .min_bytes
        .unwrap_or_else(|| args.max_bytes.map_or(LEAST, |most| most.min(LEAST)));
    let most = args.max_bytes.unwrap_or_else(|| least.max(MOST));
    if least > most {
        return Err(format!(
            "--minbytes is {least}, --maxbytes {most}: the smaller one comes first"
        ));
    }
    if args.step_bytes == Some(0) && least < most {
        return Err("--stepbytes 0 leads nowhere".into());
    }
    let mut all = vec![];
    let mut next = Some(least);
    while let Some(size) = next.filter(|size| *size <= most) {
        all.push(size);
        if all.len() > MOST_SIZES {
            return Err(format!("that is more than {MOST_SIZES} sizes"));
        }
        next = match (args.step_bytes, args.step_factor.unwrap_or(4)) {
            (Some(0), _) => None,
            (Some(step), _) => size.checked_add(step),
            (None, factor) => match size {
                0 => Some(dtype.size() as u64),
                size => size.checked_mul(factor),
            },
        };
    }
    Ok(all)
}

pub(super) fn wanted_places(args: &PerfArgs, operation: Operation) -> Result<Vec<Place>, String> {
    let wanted = match (args.place, args.csv) {
        (Some(Places::In), _) => vec![Place::In],
        (Some(Places::Out), _) => vec![Place::Out],
        (Some(Places::Both), true) => {
            return Err("--csv has no column for the place: say --place in or out".into());
        }
        (None, true) => vec![operation.usual_place()],
        (_, false) => Place::BOTH.to_vec(),
    };
    let there: Vec<Place> = wanted
        .iter()
        .copied()
        .filter(|place| operation.has(*place))
        .collect();
    match there.is_empty() {
        true => Err(format!(
            "{} does not run {}",
            operation.name(),
            wanted[0].name()
        )),
        false => Ok(there),
    }
}

pub(super) fn iterations(args: &PerfArgs) -> Result<Iterations, String> {
    let budget = args
        .budget
        .or((args.csv && args.iters.is_none()).then_some(1.0));
    let Some(seconds) = budget else {
        if args.min_iters.or(args.max_iters).is_some() {
            return Err("--min-iters and --max-iters are limits of --budget".into());
        }
        return Ok(Iterations::Fixed(args.iters.unwrap_or(20)));
    };
    let least = args.min_iters.unwrap_or(5.min(args.max_iters.unwrap_or(5)));
    let most = args.max_iters.unwrap_or(4000.max(least));
    if least > most {
        return Err(format!("--min-iters is {least}, --max-iters {most}"));
    }
    Ok(Iterations::Budget {
        seconds,
        least,
        most,
    })
}
