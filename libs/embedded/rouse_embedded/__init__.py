"""The whole mesh on one machine: stores from wheels, every service a supervised process."""
