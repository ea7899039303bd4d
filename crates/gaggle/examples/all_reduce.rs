//! The mean of all ranks' numbers: alone, or as `gaggle run -n 4 -- target/debug/examples/all_reduce`.

fn main() -> Result<(), gaggle::Error> {
    let group = gaggle::join()?;
    let mut x = [group.rank().0 as f32];
    let done = group.all_reduce(&mut x, gaggle::Mean);
    done.map(|_| println!("{}: the mean of all ranks is {}", group.rank(), x[0]))
}
