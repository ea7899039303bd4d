//! Plans alone: plan, prove and cost an all-reduce of five ranks that do not exist.

use gaggle_collectives::{Call, Cost, Promise, Request, check, plan};
use gaggle_core::{Algorithm, Codec, DType, Rank, Reduce};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let promise = Promise::of_all(&Request {
        call: Call::AllReduce { reduce: Reduce::Sum, algorithm: Algorithm::Ring },
        rank: Rank(0),
        world: 5,
        len: 1000,
        slice: 128,
        codec: Codec::None,
        widen: false,
        ..Request::default()
    });
    let plans: Vec<_> = promise.requests().iter().map(plan).collect::<Result<_, _>>()?;
    check(&plans, &promise)?;
    println!("{:?}", Cost::of(&plans[0], DType::F32).map(|cost| cost.bytes_sent));
    Ok(())
}
