"""An LSTM predicts the next value of a sensor, and learns from each value that MQTT brings.

    python examples/train/mqtt_lstm.py [seconds]

Starts a broker (mosquitto) and a sensor, and shows predictions and truth while it learns. In a run
that may be killed, give `train.mqtt` a client_id and `train.Online` a spool.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import torch
from sensor import broker, sensor

from penstock import train

WINDOW, TOPIC = 16, "lorenz/x"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(1, 32, batch_first=True)
        self.out = torch.nn.Linear(32, 1)

    def forward(self, x):  # (batch, WINDOW, 1) to (batch,)
        states, _ = self.lstm(x)
        return self.out(states[:, -1])[:, 0]


def prepare(windows):
    """The values but the last, and the last: what is to be predicted."""
    values = torch.tensor([[float(message.payload) for message in window] for window in windows])
    return values[:, :-1, None], values[:, -1]


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    errors, unchanged = [], []  # of the model, and if the last value was the prediction

    def keep(step):
        x, y = step.inputs
        errors.append((step.predictions - y).abs())
        unchanged.append((x[:, -1, 0] - y).abs())

    with broker() as url, sensor(url, TOPIC):
        source = train.mqtt(f"{url}/{TOPIC}", qos=1)
        with train.Online(
            source,
            prepare,
            model,
            optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
            loss=torch.nn.functional.mse_loss,
            window=WINDOW + 1,
            on_batch=keep,
        ) as live:
            timer = threading.Timer(seconds, live.stop)
            timer.daemon = True
            timer.start()
            live.run(watch=True)
    tenths = np.array_split(np.concatenate(errors), 10)
    first, last, lazy = tenths[0].mean(), tenths[-1].mean(), np.concatenate(unchanged).mean()
    print(
        f"{sum(map(len, tenths)):,} values by MQTT; mean error {first:.3f} at the beginning, "
        f"{last:.3f} at the end; of repeating the value before: {lazy:.3f}"
    )


if __name__ == "__main__":
    main()
