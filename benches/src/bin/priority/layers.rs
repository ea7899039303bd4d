//! The layers of a ResNet-50 at 224 x 224: how many parameters each has, and how much it computes.

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layer {
    /// Weights, and for convolutions the two vectors of the batch norm behind them.
    pub(crate) parameters: u64,
    /// Multiplications of one forward pass of one image.
    pub(crate) work: u64,
}

/// In the order of the forward pass, a block's shortcut after its last convolution.
///
/// Source: He et al., "Deep Residual Learning for Image Recognition", table 1; the stride is in a block's 3 x 3 convolution, as today's libraries have it.
pub(crate) fn resnet50() -> Vec<Layer> {
    let conv = |inputs: u64, outputs: u64, kernel: u64, side: u64| {
        let weights = inputs * outputs * kernel * kernel;
        Layer {
            parameters: weights + 2 * outputs,
            work: weights * side * side,
        }
    };
    let mut layers = vec![conv(3, 64, 7, 112)];
    let mut inputs = 64;
    for (blocks, width, side) in [(3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)] {
        let outputs = 4 * width;
        for block in 0..blocks {
            // The first block of a stage still sees the larger image before its stride; the first stage has none.
            let before = if block == 0 && width > 64 {
                2 * side
            } else {
                side
            };
            layers.push(conv(inputs, width, 1, before));
            layers.push(conv(width, width, 3, side));
            layers.push(conv(width, outputs, 1, side));
            if block == 0 {
                layers.push(conv(inputs, outputs, 1, side));
            }
            inputs = outputs;
        }
    }
    layers.push(Layer {
        parameters: 2048 * 1000 + 1000,
        work: 2048 * 1000,
    });
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 25,557,032 parameters and 4.09 G multiplications are what torchvision's documentation gives for its resnet50.
    #[test]
    fn sums_are_those_of_the_known_model() {
        let layers = resnet50();
        assert_eq!(layers.len(), 54);
        assert_eq!(layers.iter().map(|l| l.parameters).sum::<u64>(), 25_557_032);
        let work: u64 = layers.iter().map(|l| l.work).sum();
        assert_eq!(work / 10_000_000, 408);
    }
}
