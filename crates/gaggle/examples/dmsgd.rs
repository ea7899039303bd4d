//! Decentralised momentum SGD on the one-peer exponential graph: in each step a rank talks to one other.
//!
//! `dmsgd` alone is a world of one, `gaggle run -n 4 -- target/debug/examples/dmsgd` four processes, and `dmsgd --local 4` the same four as threads. Processes and threads print the same digests.

use gaggle::{Group, optim::*, topology::by_name};

/// Minimises Σᵣ (x − r)²/2 from `x` on; rank r sees its own term alone.
fn dmsgd(group: &Group, mut x: [f64; 1]) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
    let graph = by_name("one-peer-exp", group.size())?;
    let rule = rule_by_name("dmsgd", &RuleConfig::default())?;
    let mut driver = gaggle::decentralised(group, rule, graph, x.len(), 0.02)?;
    for step in 0..400 {
        let gradient = [x[0] - f64::from(group.rank().0)];
        driver.step(0.2 / f64::from(10 + step), &mut x, &gradient)?;
    }
    Ok(x[0])
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let report = |rank: usize, n: usize, x: f64| {
        let digest = gaggle::ddp::digest(&[x]);
        println!("rank {rank} of {n}: x = {x:.3}, digest {digest}");
    };
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let job = gaggle::join()?;
            report(job.rank().idx(), job.size(), dmsgd(&job, [0.0])?);
        }
        ["--local", n] => {
            let n = n.parse()?;
            for (rank, x) in gaggle::local(n, |group| dmsgd(&group, [0.0]))?
                .into_iter()
                .enumerate()
            {
                report(rank, n, x?);
            }
        }
        _ => return Err("usage: dmsgd [--local N]".into()),
    }
    Ok(())
}
