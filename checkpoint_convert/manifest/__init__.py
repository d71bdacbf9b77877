"""What a checkpoint holds, in memory: its entries, their names, types and places. No file is opened here."""
