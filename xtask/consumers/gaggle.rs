//! The front door: four ranks as threads agree on a mean.

use gaggle::Mean;

fn main() -> Result<(), gaggle::Error> {
    let results = gaggle::local(4, |group| -> Result<f32, gaggle::Error> {
        let mut x = [group.rank().0 as f32];
        group.all_reduce(&mut x, Mean)?;
        Ok(x[0])
    })?;
    for x in results {
        println!("{}", x?);
    }
    Ok(())
}
